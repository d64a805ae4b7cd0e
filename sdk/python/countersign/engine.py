"""What one commit works with: the parts of the runtime, and the way of waiting of its caller. Nothing decides
here.
"""

from __future__ import annotations

from dataclasses import dataclass

from countersign.client import Service
from countersign.clock import Clock
from countersign.enforcement import Enforcer
from countersign.journal import Journal
from countersign.manifests import Manifests
from countersign.settings import Settings
from countersign.tool import ToolRegistry
from countersign.waiting import Waits


@dataclass(frozen=True, slots=True)
class Engine:
    """The parts, joined for one transaction or one recovery."""

    settings: Settings
    registry: ToolRegistry
    journal: Journal
    manifests: Manifests
    enforcer: Enforcer
    service: Service
    waits: Waits
    clock: Clock
