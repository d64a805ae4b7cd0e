"""Live adapters: resources that can undo. One file each; the protocol they share is `protocol.py`, the exam that each
must pass `contract.py`, and `Inside` what the tools of one get to work on.
"""

from countersign.adapters.protocol import (
    Change,
    EffectContext,
    LiveAdapter,
    LiveCall,
    LiveSession,
    ObservedVersion,
    Savepoint,
)
from countersign.adapters.sqlite import SQLiteAdapter

__all__ = [
    "Change",
    "EffectContext",
    "LiveAdapter",
    "LiveCall",
    "LiveSession",
    "ObservedVersion",
    "SQLiteAdapter",
    "Savepoint",
]
