"""Slack: account links, interactions and queued messages."""
