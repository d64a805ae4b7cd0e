"""The administration point: loads, validates and activates bundles; the last good one stays."""
