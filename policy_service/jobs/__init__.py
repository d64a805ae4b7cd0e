"""Idempotent sweeps on a timer. Truth about time is a column; a late tick changes nothing."""
