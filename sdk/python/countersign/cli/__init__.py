"""`countersign`: commands for an agent's tools, journal and budgets (README.md)."""

from countersign.cli.app import app

__all__ = ["app"]
