"""The policy administration point: loads, validates and activates bundles; the last valid one stays active."""
