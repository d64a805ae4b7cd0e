"""Calls to language models: read what they used, know what that costs, and keep to budgets."""
