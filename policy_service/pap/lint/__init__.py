"""Lints: what can be proved wrong, or looks wrong, in a valid bundle."""
