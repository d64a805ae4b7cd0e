"""`countersign`: what a person does with an agent's tools and journal from a terminal (README.md)."""

from countersign.cli.app import app

__all__ = ["app"]
