"""Policies on trial: what a candidate would have said about real traffic."""
