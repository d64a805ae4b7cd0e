"""A bank on this machine, and a `RestApi` that knows its credentials."""

from tests.fakes.running import hurried
from tests.unit.sdk.tools.banks import api, bank

__all__ = ["api", "bank", "hurried"]
