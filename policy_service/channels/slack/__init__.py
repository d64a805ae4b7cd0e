"""Slack: post reviews as messages, and handle buttons, forms, commands and the app's home."""
