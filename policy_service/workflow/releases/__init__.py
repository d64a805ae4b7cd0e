"""Releases: minted, spent once, renewed, reported on, and taken back by a compensation."""
