"""Live adapters: resources that can undo. One file each; the protocol they share is `protocol.py`."""

from countersign.adapters.protocol import LiveAdapter, LiveCall, LiveSession
from countersign.adapters.sqlite import SQLiteAdapter

__all__ = ["LiveAdapter", "LiveCall", "LiveSession", "SQLiteAdapter"]
