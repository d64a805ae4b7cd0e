"""Agents, a log and the emergency stop, for the pages: a small working world that keeps what was pressed."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass, field, replace
from datetime import timedelta

from policy_service.channels.web.ports import Person

from countersign.contract import canonicalize
from policy_service.errors import ForbiddenError, NotFoundError
from policy_service.workflow.oversight.stopping import StopPage, Target
from policy_service.workflow.pages.agents import AgentLine, AgentList, AgentPage, EffectLine, KeyLine
from policy_service.workflow.pages.alarms import Alarms, StopLine
from policy_service.workflow.pages.searching import Found, LogLine, LogSearch
from policy_service.workflow.reading.pieces import Piece
from tests.fakes.reviews import NOW

DESK = AgentLine("desk-agent", "Maya Okafor", ("support-agent",), NOW - timedelta(days=40), None, NOW)


def page_of(agent: AgentLine) -> AgentPage:
    return AgentPage(
        agent=agent,
        teams=("support",),
        frozen=None,
        keys=(KeyLine("4rYJ0QbYb2bq7Y5xV1d0cQ", NOW - timedelta(days=40), "live", None, None),
              KeyLine("zX81QmK2tS0o9Gq3hB7nUw", NOW - timedelta(days=90), "revoked", None, None)),
        states=(("fired", 31), ("released", 2), ("denied", 1)),
        effects=(
            EffectLine("e" * 64, (Piece("Refund "), Piece("$1,240.00", value=True, kind="money")), "refund", "fired",
                       NOW - timedelta(minutes=3), "rev_01KAHX04QE", ""),
            EffectLine("d" * 64, (Piece("Refund "), Piece("$90.00", value=True, kind="money")), "refund", "denied",
                       NOW - timedelta(hours=1), None, "Money is never sent to a closed account."),
        ),
        hours=(0, 0, 1, 4, 2, 0, 0, 0, 3, 9, 14, 22, 17, 8, 6, 11, 19, 24, 12, 5, 2, 1, 0, 4),
        capped=False,
        decided_in=timedelta(minutes=12),
    )  # fmt: skip


def line(index: int, kind: str = "vote_recorded", actor: str = "person:https://idp|maya") -> LogLine:
    record = canonicalize({"kind": kind, "actor": actor, "v": 1})
    at = NOW - timedelta(minutes=index)
    return LogLine(index, at, kind, actor, "Maya Okafor", "desk-agent", "a" * 64, "e" * 64, record)


@dataclass
class FakeOversight:
    """What a page shows and what a person pressed."""

    alarmed: Alarms = field(default_factory=Alarms)
    agents: tuple[AgentLine, ...] = (DESK,)
    lines: list[LogLine] = field(default_factory=lambda: [line(n) for n in range(3, 0, -1)])
    may_not_stop: str | None = None
    may_not_start: str | None = None
    pressed: list[tuple[str, Target, str]] = field(default_factory=list)
    asked: list[LogSearch] = field(default_factory=list)

    async def alarms(self) -> Alarms:
        return self.alarmed

    async def stop_page(self, person: Person) -> StopPage:
        names = tuple(agent.name for agent in self.agents)
        return StopPage(("deploy", "refund"), names, self.may_not_stop, self.may_not_start)

    async def stop(self, person: Person, target: Target, reason: str) -> None:
        if self.may_not_stop:
            raise ForbiddenError(self.may_not_stop, code="not_eligible")
        if target.what == "agent" and all(agent.name != target.name for agent in self.agents):
            raise NotFoundError(f"no agent {target.name!r} is enrolled here, so nothing was stopped")
        self.pressed.append(("stop", target, reason))
        stop = StopLine(target, NOW, person.name, reason)
        self.alarmed = replace(self.alarmed, stops=(*self.alarmed.stops, stop))

    async def start_again(self, person: Person, target: Target, reason: str) -> None:
        if self.may_not_start:
            raise ForbiddenError(self.may_not_start, code="not_eligible")
        self.pressed.append(("start again", target, reason))
        left = tuple(stop for stop in self.alarmed.stops if stop.target != target)
        self.alarmed = replace(self.alarmed, stops=left)

    async def agent_list(self, cursor: str | None, limit: int) -> AgentList:
        return AgentList(tuple(agent for agent in self.agents if agent.name > (cursor or ""))[:limit])

    async def agent_page(self, name: str, person: Person) -> tuple[AgentPage, StopPage] | None:
        found = next((agent for agent in self.agents if agent.name == name), None)
        return None if found is None else (page_of(found), await self.stop_page(person))

    async def search(self, wanted: LogSearch, cursor: str | None, limit: int) -> Found:
        self.asked.append(wanted)
        following = "0abc" if cursor is None and len(self.lines) > limit else None
        return Found(tuple(self.lines[:limit]), following)

    async def export(self, wanted: LogSearch) -> AsyncIterator[LogLine]:
        self.asked.append(wanted)
        for each in self.lines:
            yield each
