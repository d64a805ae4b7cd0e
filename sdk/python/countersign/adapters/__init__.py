"""Live adapters: resources that can undo, one file each. `protocol.py` defines the interface, `contract_suite.py` the
tests that every adapter must pass, and `EffectContext` gives its tools the current session.
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
