"""Passkeys: how a person gets one, loses one, and proves with one that a vote is theirs."""
