"""Slack: a review where people already are, by the same rules as everywhere else."""
