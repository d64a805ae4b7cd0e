"""Revocations, emergency stops, and the epoch after a restore."""
