"""The Cedar actions whose principal is a person."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

APPROVE: Final = "approve"
"""Vote on a review."""

SETTLE: Final = "settle"
"""Settle a task."""

STOP: Final = "stop"
START_AGAIN: Final = "start_again"
"""Begin and end an emergency stop of an agent, a tool or everything."""

BREAK_GLASS: Final = "break_glass"
BREAK_GLASS_ALONE: Final = "break_glass_alone"
"""Release a held effect in an emergency: as one of two signers, or alone with a later review."""

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
"""The Cedar resource type of each action."""
