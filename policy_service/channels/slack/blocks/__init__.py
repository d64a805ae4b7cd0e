"""Render read models as Slack blocks. Pure functions."""
