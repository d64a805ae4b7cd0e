"""Passkeys: managing them, and proving a vote with one."""
