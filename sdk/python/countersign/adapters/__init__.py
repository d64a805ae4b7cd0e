"""Live adapters: resources that can undo. One file each; the protocol they share is `protocol.py`, the exam that each
must pass `contract.py`.
"""

from countersign.adapters.protocol import Change, LiveAdapter, LiveCall, LiveSession, Savepoint, Seen
from countersign.adapters.sqlite import SQLiteAdapter

__all__ = ["Change", "LiveAdapter", "LiveCall", "LiveSession", "SQLiteAdapter", "Savepoint", "Seen"]
