"""Channels: HTTP, web, Slack and the command line. They translate to and from the workflow and never decide."""
