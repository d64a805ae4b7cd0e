"""Sweeps: what happens to rows when their time has passed."""
