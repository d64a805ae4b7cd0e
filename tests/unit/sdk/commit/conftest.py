"""Timeouts that are over soon, for tests that request them."""

from tests.fakes.running import hurried

__all__ = ["hurried"]
