"""Oversight: what may not happen any more, by a person, an operator, or a backup that forgot."""
