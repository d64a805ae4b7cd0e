"""The policies page: active policies, how often each decided lately, the shadow bundle, and bundle events.

Decisions of the last week are counted up to a limit and cached for a minute.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, Final, Literal, TypeAlias, cast

from sqlalchemy import Connection, select

from policy_service.domain.person_actions import (
    APPROVE,
    BREAK_GLASS,
    BREAK_GLASS_ALONE,
    SETTLE,
    START_AGAIN,
    STOP,
)
from policy_service.pap.bundle import Bundle
from policy_service.pap.policy_tests.activation_check import CaseSummary, summarize_cases
from policy_service.pap.source import CommitInfo
from policy_service.pdp.rules import PolicySource
from policy_service.queries.context import Context
from policy_service.queries.repository import rows
from policy_service.queries.review_models import FactLine
from policy_service.queries.shadow import ShadowDirection, read_shadow
from policy_service.storage.core import table
from policy_service.storage.system_tables import BUNDLE_LINES, AuditRow, ShadowDifferenceRow
from policy_service.storage.tables import DecisionRow

EventKind: TypeAlias = Literal["activated", "refused", "allowed"]
PolicyKind: TypeAlias = Literal[
    "permit", "forbid", "gate", "approving", "settling", "stopping", "starting", "break-glass"
]


@dataclass(frozen=True, slots=True)
class ActiveBundleInfo:
    """The active bundle, and why a newer one is not active."""

    digest: str
    commit: str
    origin: str
    author: str | None
    subject: str | None  # the first line of its message
    written_at: datetime | None
    since: datetime | None
    tools: int
    policies: int
    gates: int
    head: str | None  # digest of the newest bundle, if it is not active
    why: str | None  # why the newest is not active: invalid, force_push, ...
    problems: tuple[str, ...]
    failed_at: datetime | None
    warnings: tuple[str, ...]
    cases: int
    cases_say: str  # whether they pass, in a few words


@dataclass(frozen=True, slots=True)
class PolicyRow:
    """One policy of the active bundle. ``decided`` counts recent decisions, ``cases`` the policy tests it
    determines.
    """

    policy_id: str
    title: str
    kind: PolicyKind
    asks: str
    file: str
    line: int
    text: str
    doc: str
    decided: int
    cases: int


@dataclass(frozen=True, slots=True)
class ToolRow:
    """One tool of the bundle, and its arguments that no policy can evaluate."""

    tool: str
    title: str
    risk: str
    digest: str
    unseen: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ShadowDifferenceLine:
    """An effect that the candidate would decide differently."""

    tool: str
    agent: str
    at: datetime
    way: Literal["looser", "stricter", "other"]
    now: str
    then: str
    because: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ShadowInfo:
    """The candidate, its numbers and its newest differences."""

    origin: str
    commit: str | None
    since: datetime | None
    compared: int
    looser: int
    stricter: int
    other: int
    failed: int
    problems: tuple[str, ...]
    rows: tuple[ShadowDifferenceLine, ...]

    @property
    def same(self) -> int:
        """The number of equal decisions."""
        return self.compared - self.looser - self.stricter - self.other


@dataclass(frozen=True, slots=True)
class BundleEvent:
    """A commit was activated, refused or allowed by an operator, with its author and subject if the source
    still has them.
    """

    at: datetime
    kind: EventKind
    commit: str
    text: str
    author: str | None = None
    subject: str | None = None  # the first line of its message


@dataclass(frozen=True, slots=True)
class PoliciesPage:
    """Everything the policies page shows. ``counted`` is the number of decisions counted."""

    in_force: ActiveBundleInfo
    policies: tuple[PolicyRow, ...]
    tools: tuple[ToolRow, ...]
    counted: int
    counted_all: bool
    shadow: ShadowInfo | None
    events: tuple[BundleEvent, ...]
    chosen: PolicyRow | None


@dataclass(frozen=True, slots=True)
class EvaluatedCall:
    """The result of a dry run for the policies page."""

    outcome: Literal["release", "review", "deny"]
    policies: tuple[PolicyRow, ...]
    asks: tuple[str, ...]
    reasons: tuple[str, ...]
    advice: tuple[str, ...]
    unseen: tuple[str, ...]
    facts: tuple[FactLine, ...]


_WEEK: Final = timedelta(days=7)
_COUNTED: Final = 10_000  # decisions; about 50 ms
_CACHED_FOR: Final = timedelta(minutes=1)
_DIFFERENCES: Final = 50
_KINDS_BY_ACTION: Final[dict[str, PolicyKind]] = {
    APPROVE: "approving",
    SETTLE: "settling",
    STOP: "stopping",
    START_AGAIN: "starting",
    BREAK_GLASS: "break-glass",
    BREAK_GLASS_ALONE: "break-glass",
}
_EVENTS: Final = 12
_NO_CASES: Final = CaseSummary()
_EVENT_KINDS: Final[dict[str, EventKind]] = {
    "bundle_activated": "activated",
    "bundle_refused": "refused",
    "bundle_override": "allowed",
}
_WHY: Final = {
    "force_push": "does not descend from the commit in force",
    "unsigned": "is not signed by one of those who may",
    "cases": "does not pass its own cases and those that were in force",
    "gone": "the branch or tag is not there",
}
_decisions, _lines = table(DecisionRow).c, table(AuditRow)


@dataclass(frozen=True, slots=True)
class DecisionCounts:
    """How often each policy determined a decision."""

    at: datetime
    decided: Counter[str]
    counted: int
    all: bool


class PoliciesReader:
    """Reads the policies page of one service."""

    def __init__(self, ctx: Context) -> None:
        self._ctx = ctx
        self._tally: DecisionCounts | None = None
        self._held: tuple[str, CaseSummary] = ("", CaseSummary())

    async def page(self, chosen: str | None) -> PoliciesPage:
        """The page; with one policy in full if ``chosen`` exists."""
        bundle, tally = self._ctx.active.current, await self._counted()
        cases = await self._cases(bundle)
        policies = tuple(
            policy_row(bundle, source, tally.decided, cases) for source in bundle.policies.values()
        )
        return PoliciesPage(
            in_force=self._in_force(bundle, cases),
            policies=policies,
            tools=tuple(_tool(bundle, name) for name in sorted(bundle.manifests)),
            counted=tally.counted,
            counted_all=tally.all,
            shadow=await self._shadow(),
            events=await self._events(),
            chosen=next((row for row in policies if row.policy_id == chosen), None),
        )

    async def _events(self) -> tuple[BundleEvent, ...]:
        found = await self._ctx.db.read(_events)
        written = await self._ctx.active.written({event.commit for event in found})
        return tuple(_with_author(event, written.get(event.commit)) for event in found)

    async def _counted(self) -> DecisionCounts:
        now = self._ctx.clock()
        if self._tally is None or not now - _CACHED_FOR < self._tally.at <= now:
            self._tally = await self._ctx.db.read(lambda conn: _count(conn, now))
        return self._tally

    async def _cases(self, bundle: Bundle) -> CaseSummary:
        """Run the policy tests once for each bundle, in a thread."""
        if self._held[0] != bundle.digest:
            self._held = (bundle.digest, await asyncio.to_thread(summarize_cases, bundle))
        return self._held[1]

    def _in_force(self, bundle: Bundle, cases: CaseSummary) -> ActiveBundleInfo:
        status, written = self._ctx.active.status(), bundle.source.written
        gates = sum(source.gate is not None for source in bundle.policies.values())
        return ActiveBundleInfo(
            digest=bundle.digest,
            commit=bundle.commit,
            origin=bundle.source.origin,
            author=None if written is None else written.author,
            subject=None if written is None else _subject(written),
            written_at=None if written is None else written.at,
            since=status.loaded_at,
            tools=len(bundle.manifests),
            policies=len(bundle.policies),
            gates=gates,
            head=status.head_digest if status.head_digest != bundle.digest else None,
            why=None if status.error is None else status.error.why,
            problems=() if status.error is None else tuple(map(str, status.error.problems)),
            failed_at=status.failed_at,
            warnings=tuple(map(str, bundle.warnings)),
            cases=cases.cases,
            cases_say=_cases_say(cases),
        )

    async def _shadow(self) -> ShadowInfo | None:
        if self._ctx.candidate is None:
            return None
        status = self._ctx.candidate.status()
        known = None if status.digest is None else await read_shadow(self._ctx, status.digest, _DIFFERENCES)
        counts = dict.fromkeys(("compared", "looser", "stricter", "other", "failed"), 0)
        return ShadowInfo(
            origin=status.origin,
            commit=status.commit,
            since=None if known is None else known.since,
            problems=() if status.error is None else tuple(map(str, status.error.problems)),
            rows=() if known is None else tuple(map(_difference, known.differences)),
            **(counts if known is None else known.counts),
        )


def policy_row(
    bundle: Bundle, source: PolicySource, decided: Counter[str], cases: CaseSummary = _NO_CASES
) -> PolicyRow:
    return PolicyRow(
        policy_id=source.id,
        title=source.title,
        kind=policy_kind(source),
        asks=_asks(bundle, source),
        file=source.file,
        line=source.line,
        text=source.text,
        doc=source.doc,
        decided=decided[source.id],
        cases=cases.by_policy.get(source.id, 0),
    )


def _cases_say(cases: CaseSummary) -> str:
    if cases.problem is not None:
        return f"cases cannot be read: {cases.problem}"
    if not cases.cases:
        return "cases: nothing holds these rules"
    passed = "all pass" if not cases.failing else f"{cases.failing} do not hold"
    return f"cases, {passed}" + (f", {cases.not_run} need sources and were not run" if cases.not_run else "")


def policy_kind(source: PolicySource) -> PolicyKind:
    """What a policy is for."""
    if source.people_action is not None:
        return _KINDS_BY_ACTION[source.people_action]
    return "gate" if source.gate is not None else source.effect


def _asks(bundle: Bundle, source: PolicySource) -> str:
    gate = source.gate
    if gate is None:
        return ""
    who = " or ".join(bundle.directory.title_of(group) for group in sorted(gate.groups))
    many = f"{gate.quorum} of " if gate.quorum > 1 else ""
    return many + who + (f", with a {gate.step_up}" if gate.step_up else "")


def _tool(bundle: Bundle, name: str) -> ToolRow:
    manifest = bundle.manifests[name]
    unseen = tuple(sorted(bundle.rules.tools[name].codec.possible_unseen))
    return ToolRow(name, manifest.title, manifest.risk, manifest.digest, unseen)


def _difference(row: ShadowDifferenceRow) -> ShadowDifferenceLine:
    gone = [name for name in row.before["policies"] if name not in row.after["policies"]]
    new = [name for name in row.after["policies"] if name not in row.before["policies"]]
    return ShadowDifferenceLine(
        tool=row.tool,
        agent=row.agent,
        at=row.at,
        way=cast(ShadowDirection, row.way),
        now=_answer_text(row.before),
        then=_answer_text(row.after),
        because=tuple(new or gone),
    )


def _answer_text(answer: dict[str, object]) -> str:
    asks = answer["asks"]
    return str(answer["outcome"]) if asks is None else f"{answer['outcome']} by {asks}"


def _events(conn: Connection) -> tuple[BundleEvent, ...]:
    newest = select(*_lines.columns).where(BUNDLE_LINES).order_by(_lines.c.audit_id.desc()).limit(_EVENTS)
    return tuple(_event(row) for row in rows(conn, AuditRow, newest))


def _event(row: AuditRow) -> BundleEvent:
    body = json.loads(row.body)
    return BundleEvent(row.at, _EVENT_KINDS[row.kind], str(body.get("commit") or ""), _event_text(body))


def _with_author(event: BundleEvent, written: CommitInfo | None) -> BundleEvent:
    return event if written is None else replace(event, author=written.author, subject=_subject(written))


def _subject(written: CommitInfo) -> str:
    return written.message.strip().partition("\n")[0]


def _event_text(body: Mapping[str, Any]) -> str:
    """The text of an event: an operator's reason, or what was wrong and where."""
    if "file" in body:
        return f"does not load: {body['file']}:{body['line'] or 1}"
    if "why" in body:
        return _WHY.get(body["why"], str(body["why"]))
    return str(body.get("override") or body.get("reason") or "")


def _count(conn: Connection, now: datetime) -> DecisionCounts:
    # by key, which is ordered by time: the week is cut off here, not by a scan
    newest = select(_decisions.policies, _decisions.decided_at).order_by(_decisions.decision_id.desc())
    within = conn.execute(newest.limit(_COUNTED + 1))
    found = [policies for policies, at in within if at > now - _WEEK]
    decided = Counter(policy_id for policies in found[:_COUNTED] for policy_id in policies)
    return DecisionCounts(now, decided, min(len(found), _COUNTED), len(found) <= _COUNTED)
