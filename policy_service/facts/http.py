"""One HTTP source: what a host of the operator's answers about one call, kept no longer than it may be.

Rules kept here: the question is one JSON object of the canonical args, the resource, the agent and the tool, or of
those the source asks to send; the answer is one object of attributes, and 404 says that nothing is known. Who asks the
same while an answer is on its way waits for that one. An answer is served again for `cache`, with the time it was
fetched at (or its own), never one that has become older than `max_age`; that nothing is known, or that it failed, for
a second.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from countersign.contract import JSON, Limits, canonicalize, load
from policy_service.facts.attributes import moment_of
from policy_service.facts.calling import Place
from policy_service.facts.config import SourceSpec
from policy_service.facts.sql import SourceFailedError

_LIMITS: Final = Limits(max_bytes=65_536, max_depth=4, max_nodes=2_000)  # attributes of one entity
_KEPT: Final = 1_024  # answers of one source, some 64 MB at the very worst
_SHORT: Final = timedelta(seconds=1)


@dataclass(frozen=True, slots=True)
class Answer:
    """What one question came to: a row, nothing, or why it failed; and when it was asked."""

    row: Mapping[str, Any] | None
    asked_at: datetime
    failed: str | None = None


class HttpReader:
    """Asks one address. It holds nothing open."""

    def __init__(self, spec: SourceSpec, place: Place, turns: asyncio.Semaphore) -> None:
        """``turns`` bounds the questions to one host, over all sources there."""
        self._spec = spec
        self._place = place
        self._turns = turns
        self._kept: OrderedDict[bytes, Answer] = OrderedDict()
        self._asking: dict[bytes, asyncio.Task[Answer]] = {}

    async def ask(self, values: Mapping[str, str], now: datetime) -> tuple[Answer, bool]:
        """The answer, and whether it is one of before.

        Raises:
            SourceFailedError: there is none to be had.
        """
        body = canonicalize(self._question(values))
        kept = self._kept.get(body)
        again = kept is not None and self._may_serve(kept, now)
        answer = kept if kept is not None and again else await self._ask_once(body, now)
        if answer.failed is not None:
            raise SourceFailedError(answer.failed)
        return answer, again

    def close(self) -> None:
        """Forget every answer; a question that is on its way ends by its own limit of time."""
        self._kept.clear()

    def _question(self, values: Mapping[str, str]) -> JSON:
        everything: dict[str, JSON] = {
            "args": load(values["args"].encode()),
            "resource": {"type": values["resource_type"], "id": values["resource_id"]},
            "agent": values["agent"],
            "tool": values["tool"],
        }
        return {name: everything[name] for name in self._spec.send}

    def _may_serve(self, kept: Answer, now: datetime) -> bool:
        age, good = now - kept.asked_at, self._spec.cache
        if kept.row is None:
            good = min(good, _SHORT)
        return timedelta() <= age < good and not self._has_become_stale(kept, now)

    def _has_become_stale(self, kept: Answer, now: datetime) -> bool:
        if kept.row is None or self._spec.as_of is None or self._spec.max_age is None:
            return False
        try:
            return now - moment_of(kept.row.get(self._spec.as_of)) > self._spec.max_age
        except ValueError:
            return True  # whoever asks is told so by a fresh answer

    async def _ask_once(self, body: bytes, now: datetime) -> Answer:
        running = self._asking.get(body)
        if running is None:
            running = self._asking[body] = asyncio.create_task(self._ask(body, now))
            running.add_done_callback(lambda _: self._asking.pop(body, None))
        return await asyncio.shield(running)  # the first who asks may hang up; the others still wait for it

    async def _ask(self, body: bytes, now: datetime) -> Answer:
        seconds = self._spec.timeout.total_seconds()
        try:
            async with asyncio.timeout(seconds), self._turns:
                found = await self._place.ask(
                    "POST", str(self._spec.url), limits=_LIMITS, seconds=seconds, body=body
                )
            if found is not None and not isinstance(found, dict):
                raise SourceFailedError("its answer is no object of attributes")
            answer = Answer(found, now)
        except TimeoutError:
            answer = Answer(None, now, f"no turn and no whole answer within {seconds:g} s")
        except SourceFailedError as error:
            answer = Answer(None, now, str(error))
        if self._spec.cache:
            self._keep(body, answer)
        return answer

    def _keep(self, body: bytes, answer: Answer) -> None:
        self._kept[body] = answer
        self._kept.move_to_end(body)
        while len(self._kept) > _KEPT:
            self._kept.popitem(last=False)
