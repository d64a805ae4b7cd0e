"""An agent's memory: what it remembers, recalls and forgets in live tools, and takes back with the rest of the step."""

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
    """What an agent remembers from one step to the next, as live tools change it. Give its tools `.adapter`."""

    def __init__(self, adapter: MemoryAdapter | None = None) -> None:
        self.adapter = adapter or MemoryAdapter(name="agent_memory")

    def remember(self, text: str, *, key: str | None = None) -> str:
        """Keep a text, in place of what was kept under that key; the answer is the key."""
        named = key if key is not None else hashlib.sha256(text.encode()).hexdigest()[:_KEY_LENGTH]
        self.adapter[named] = text
        return named

    def recall(self, words: str = "", *, limit: int = 10) -> tuple[Memory, ...]:
        """What has most of these words in it, the latest first; without words, the latest of all. What somebody else
        remembers or forgets meanwhile would have been another answer, and is refused at the commit.
        """
        wanted = set(words.casefold().split())
        kept = [Memory(key, self.adapter[key]) for key in reversed(self.adapter.keys())]
        hits = {one.key: len(wanted & set(one.text.casefold().split())) for one in kept}
        found = sorted(kept, key=lambda one: -hits[one.key])  # stable: the latest stays first
        return tuple(one for one in found if hits[one.key] or not wanted)[:limit]

    def forget(self, key: str) -> None:
        """Keep it no longer.

        Raises:
            NotStageable: there is nothing under that key.
        """
        del self.adapter[key]
