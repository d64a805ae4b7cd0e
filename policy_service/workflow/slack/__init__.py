"""Slack: whose account it is, and who may decide through it."""
