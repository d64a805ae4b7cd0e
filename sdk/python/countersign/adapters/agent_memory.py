"""Agent memory: live tools remember, recall and forget texts, undone with the rest of the transaction."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Final

from countersign.adapters.memory import MemoryAdapter

_KEY_LENGTH: Final = 16


@dataclass(frozen=True, slots=True)
class Memory:
    """One thing an agent remembers."""

    key: str
    text: str


class AgentMemory:
    """The memory of an agent across transactions, changed by live tools. Pass `.adapter` to those tools."""

    def __init__(self, adapter: MemoryAdapter | None = None) -> None:
        self.adapter = adapter or MemoryAdapter(name="agent_memory")

    def remember(self, text: str, *, key: str | None = None) -> str:
        """Store a text under a key, replacing what was stored there; returns the key."""
        named = key if key is not None else hashlib.sha256(text.encode()).hexdigest()[:_KEY_LENGTH]
        self.adapter[named] = text
        return named

    def recall(self, words: str = "", *, limit: int = 10) -> tuple[Memory, ...]:
        """The texts with the most of these words, newest first; without words, the newest. If another transaction
        changes the memory meanwhile, the commit is refused, because the result would have been different.
        """
        wanted = set(words.casefold().split())
        kept = [Memory(key, self.adapter[key]) for key in reversed(self.adapter.keys())]
        hits = {one.key: len(wanted & set(one.text.casefold().split())) for one in kept}
        found = sorted(kept, key=lambda one: -hits[one.key])  # stable: the newest stays first
        return tuple(one for one in found if hits[one.key] or not wanted)[:limit]

    def forget(self, key: str) -> None:
        """Remove the text under a key.

        Raises:
            NotStageable: there is nothing under that key.
        """
        del self.adapter[key]
