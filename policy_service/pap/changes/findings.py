"""What a comparison says: one finding for each change, which way it goes, and the id an author acknowledges it by.

Rules kept here: an id is the digest of everything the finding says, so an acknowledgement never covers a change that
was made after it; what nobody can classify is a loosening.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final

_ID_DIGITS: Final = 12


class Way(StrEnum):
    """Which way a change goes: laxer, to be looked at, or stricter."""

    LOOSENING = "loosening"
    LOOK = "look"
    TIGHTENING = "tightening"


@dataclass(frozen=True, slots=True)
class Finding:
    """One change. ``subject`` is what changed (a tool, a group, a file), ``lines`` are an example and places, for
    people; ``content`` is what the id covers beside kind, subject and sentence.
    """

    way: Way
    kind: str
    subject: str
    sentence: str
    lines: tuple[str, ...] = ()
    policies: tuple[str, ...] = ()
    content: Any = None
    files: frozenset[str] = frozenset()
    example: Any = field(default=None, compare=False)

    @property
    def id(self) -> str:
        """Its short name; the same for the same change, another for any other."""
        said = [self.way.value, self.kind, self.subject, self.sentence, list(self.policies), self.content]
        raw = json.dumps(said, sort_keys=True, default=str).encode()
        return hashlib.sha256(b"countersign/finding/v1\n" + raw).hexdigest()[:_ID_DIGITS]

    def to_json(self) -> dict[str, Any]:
        """The finding for machines."""
        return {
            "id": self.id,
            "way": self.way.value,
            "kind": self.kind,
            "subject": self.subject,
            "sentence": self.sentence,
            "lines": list(self.lines),
            "policies": list(self.policies),
            "files": sorted(self.files),
            "example": self.example,
        }

    def to_text(self) -> str:
        """The finding for people, its lines indented below it."""
        name = f"[{self.id}] " if self.way is Way.LOOSENING else ""
        return "\n".join(
            [f"  {name}{self.subject}: {self.sentence}", *(f"      {line}" for line in self.lines)]
        )


def of_way(findings: Iterable[Finding], way: Way) -> list[Finding]:
    """Those that go this way, in order, each once."""
    return list({finding.id: finding for finding in findings if finding.way is way}.values())
