"""Tasks: questions that only a person can answer."""
