"""A service of one's own for tests of an agent's rules: what the pytest plugin's fixtures are made of.

The SDK never imports the service: it starts the installed one as an operator would, in a process of its own.
"""

from countersign.testing.decisions import Decide
from countersign.testing.people import People, VoteRefused
from countersign.testing.service import ServiceFailed, TestedService

__all__ = ["Decide", "People", "ServiceFailed", "TestedService", "VoteRefused"]
