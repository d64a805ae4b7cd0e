"""Releases: submission, release, redemption, renewal, report and compensation."""
