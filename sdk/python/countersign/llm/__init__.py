"""Calls to language models: usage, cost and budgets."""
