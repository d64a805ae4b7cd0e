"""What people do here, as policies name it: the actions whose principal is a person."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

APPROVE: Final = "approve"
"""May this person vote?"""

SETTLE: Final = "settle"
"""May they settle a task?"""

STOP: Final = "stop"
START_AGAIN: Final = "start_again"
"""May they stop an agent, a tool or everything, and end such a stop?"""

BREAK_GLASS: Final = "break_glass"
BREAK_GLASS_ALONE: Final = "break_glass_alone"
"""May they open a held effect in an emergency: as one of two, or alone with a review afterwards?"""

RESOURCE_TYPES: Final[Mapping[str, str]] = MappingProxyType(
    {
        APPROVE: "Review",
        SETTLE: "Task",
        STOP: "Stop",
        START_AGAIN: "Stop",
        BREAK_GLASS: "Review",
        BREAK_GLASS_ALONE: "Review",
    }
)
"""What each of them is done to."""
