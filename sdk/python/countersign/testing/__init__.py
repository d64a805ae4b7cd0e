"""A policy service for tests of an agent's policies, used by the pytest plugin's fixtures.

The SDK never imports the service: it starts the installed one as an operator would, in its own process.
"""

from countersign.testing.decisions import Decide
from countersign.testing.people import People, VoteRefused
from countersign.testing.service import ServiceFailed, TestedService

__all__ = ["Decide", "People", "ServiceFailed", "TestedService", "VoteRefused"]
