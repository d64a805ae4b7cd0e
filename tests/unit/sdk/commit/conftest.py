"""Timeouts that are over soon, for tests that say so."""

from tests.fakes.running import hurried

__all__ = ["hurried"]
