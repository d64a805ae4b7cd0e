"""The context panel of a review: precedents, meters and the redemption.

It is not signed. It shows what the service itself has recorded:

- precedents were submitted before the effect, so a settled review keeps showing what its voters could see;
- queries use an index and read a bounded number of rows;
- a value that is secret in either effect, or by the current manifest, is hidden in both;
- meter values are those the decision saw, without the effect's own reservation and later ones (design section 4).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from sqlalchemy import Connection, Select, and_, bindparam, or_, select

from countersign.contract import EffectState, load, pointer_tokens
from policy_service.domain.person_actions import BREAK_GLASS
from policy_service.facts.meters import COUNT, Meter
from policy_service.pap.bundle import Bundle
from policy_service.pdp.limits import find_limit
from policy_service.queries.effects import ArgRow, Piece, arg_rows, effect_sentence, is_hidden, manifest_for
from policy_service.queries.repository import is_valid_vote, select_at_revisions, select_in
from policy_service.storage.core import table
from policy_service.storage.tables import DecisionRow, EffectRow, ReviewRow, VoteRow


@dataclass(frozen=True, slots=True)
class Precedent:
    """An earlier effect and its outcome. `by` and `reason` are of the person who denied it."""

    sentence: tuple[Piece, ...]
    agent: str
    asked_at: datetime
    state: str
    review_id: str | None = None  # None: no review was opened
    by: str | None = None
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Precedents:
    """Effects of the same tool on the same resource, or to the same recipients, in the days before."""

    days: int
    resource_type: str
    to_recipients: bool  # whether the arguments name recipients
    counts: Mapping[str, int]  # by state
    capped: bool  # there are more than were counted
    rows: tuple[Precedent, ...]  # the newest of them, newest first


@dataclass(frozen=True, slots=True)
class LastApproved:
    """The agent's last effect of the same tool that fired or that people approved, with its arguments."""

    effect: Precedent
    args: tuple[ArgRow, ...]
    approved_by: tuple[str, ...]
    same_version: bool  # the tool's manifest has not changed since
    opened_by: tuple[str, ...] = ()  # by break-glass


@dataclass(frozen=True, slots=True)
class MeterLimit:
    """The total above which a policy forbids, or requires approval."""

    total: int
    policy_id: str
    title: str
    asks: bool  # above it approval is required; otherwise it is forbidden


@dataclass(frozen=True, slots=True)
class MeterLine:
    """A meter as it was when the effect took its reservation."""

    name: str
    doc: str
    per: str
    window: str
    until: datetime | None  # None: a rolling window
    before: int
    this: int | None  # None: it would reveal a secret
    currency: str | None
    limit: MeterLimit | None = None


@dataclass(frozen=True, slots=True)
class RedemptionProof:
    """The redemption of the effect."""

    redeemer: str
    attempt_id: str
    redeemed_at: datetime
    jti: str | None
    fire_by: datetime | None


@dataclass(frozen=True, slots=True)
class ContextPanel:
    """All of it. `last` and `past` are None if there are no precedents."""

    last: LastApproved | None = None
    past: Precedents | None = None
    meters: tuple[MeterLine, ...] = ()
    proof: RedemptionProof | None = None


PRECEDENT_DAYS: Final = 30
MAX_SHOWN: Final = 5
MAX_COUNTED: Final = 200  # similar effects counted
MAX_SCANNED: Final = 200  # effects scanned to find an approved one

_FIRED: Final = (
    EffectState.FIRED,
    EffectState.COMPENSATING,
    EffectState.COMPENSATED,
    EffectState.COMPENSATION_FAILED,
)

_E, _R = table(EffectRow).c, table(ReviewRow).c


def _newest_of_kind() -> Select[Any]:
    newest = (
        select(_E.effect_id, _E.rev, _E.state, _E.asked_at)
        .where(_E.agent == bindparam("agent"), _E.tool == bindparam("tool"))
        .where(_E.asked_at < bindparam("before"), _E.effect_id != bindparam("own"))
        .order_by(_E.asked_at.desc())
        .limit(MAX_SCANNED)
        .subquery()
    )
    reviewed = and_(_R.effect_id == newest.c.effect_id, _R.rev == newest.c.rev)
    return (
        select(newest.c.effect_id, newest.c.rev)
        .select_from(newest.outerjoin(table(ReviewRow), reviewed))
        .where(or_(newest.c.state.in_([state.value for state in _FIRED]), _R.state == "met"))
        .order_by(newest.c.asked_at.desc())
        .limit(1)
    )


def _similar(key: str) -> Select[Any]:
    return (
        select(_E.effect_id, _E.rev, _E.state, _E.asked_at)
        .where(_E.tool == bindparam("tool"), _E[key] == bindparam("key"))
        .where(_E.asked_at < bindparam("before"), _E.asked_at >= bindparam("since"))
        .where(_E.effect_id != bindparam("own"))
        .order_by(_E.asked_at.desc())
        .limit(MAX_COUNTED + 1)
    )


_LAST: Final = _newest_of_kind()
_BY_RESOURCE: Final = _similar("resource_key")
_BY_RECIPIENTS: Final = _similar("recipients_key")


@dataclass(frozen=True)
class _PastReview:
    """An earlier effect with its review and valid votes."""

    effect: EffectRow
    review: ReviewRow | None
    votes: tuple[VoteRow, ...]


def read_precedents(
    conn: Connection, bundle: Bundle, effect: EffectRow
) -> tuple[LastApproved | None, Precedents | None]:
    """The last approved effect of the tool, and similar effects; None if there are none."""
    newest = [(row.effect_id, row.rev) for row in conn.execute(_LAST, _parameters(effect))]
    like = _find_similar(conn, effect)
    shown = [(row.effect_id, row.rev) for row in like[:MAX_SHOWN]]
    stories = _read_past_reviews(conn, [*newest, *shown])
    last = _last(bundle, effect, stories[newest[0]]) if newest else None
    if not like:
        return last, None
    return last, Precedents(
        days=PRECEDENT_DAYS,
        resource_type=effect.resource_type,
        to_recipients=effect.recipients_key is not None,
        counts=Counter(row.state for row in like[:MAX_COUNTED]),
        capped=len(like) > MAX_COUNTED,
        rows=tuple(_precedent(bundle, effect, stories[key]) for key in shown),
    )


def _parameters(effect: EffectRow) -> dict[str, Any]:
    return {"agent": effect.agent, "tool": effect.tool, "before": effect.asked_at, "own": effect.effect_id}


def _find_similar(conn: Connection, effect: EffectRow) -> list[Any]:
    """Newest first; each effect once, at its newest revision."""
    asked = {
        "tool": effect.tool,
        "before": effect.asked_at,
        "since": effect.asked_at - timedelta(days=PRECEDENT_DAYS),
        "own": effect.effect_id,
    }
    found = list(conn.execute(_BY_RESOURCE, asked | {"key": effect.resource_key}))
    if effect.recipients_key is not None:
        found += conn.execute(_BY_RECIPIENTS, asked | {"key": effect.recipients_key})
    found.sort(key=lambda row: (row.asked_at, row.rev), reverse=True)
    once: dict[str, Any] = {}
    for row in found:
        once.setdefault(row.effect_id, row)
    return list(once.values())


def _read_past_reviews(
    conn: Connection, wanted: Sequence[tuple[str, int]]
) -> dict[tuple[str, int], _PastReview]:
    if not wanted:
        return {}
    effects = {
        (row.effect_id, row.rev): row for row in select_at_revisions(conn, EffectRow, "effect_id", wanted)
    }
    reviews = {
        (row.effect_id, row.rev): row for row in select_at_revisions(conn, ReviewRow, "effect_id", wanted)
    }
    cast = select_in(conn, VoteRow, table(VoteRow).c.review_id, sorted(r.review_id for r in reviews.values()))
    votes: dict[str, list[VoteRow]] = {}
    for vote in sorted(cast, key=lambda vote: vote.vote_id):
        if is_valid_vote(vote):
            votes.setdefault(vote.review_id, []).append(vote)
    found = {}
    for key in wanted:
        review = reviews.get(key)
        of_it = () if review is None else tuple(votes.get(review.review_id, ()))
        found[key] = _PastReview(effects[key], review, of_it)
    return found


def _last(bundle: Bundle, effect: EffectRow, story: _PastReview) -> LastApproved:
    return LastApproved(
        effect=_precedent(bundle, effect, story),
        args=arg_rows(bundle, _with_secrets_of_both(bundle, effect, story.effect), []),
        approved_by=_names(story, "approve"),
        same_version=story.effect.tool_digest == effect.tool_digest,
        opened_by=_names(story, BREAK_GLASS)
        if story.review is not None and story.review.break_glass_at
        else (),
    )


def _names(story: _PastReview, verdict: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(vote.name for vote in story.votes if vote.verdict == verdict))


def _precedent(bundle: Bundle, effect: EffectRow, story: _PastReview) -> Precedent:
    denied = next((vote for vote in story.votes if vote.verdict == "deny"), None)
    if story.effect.state != EffectState.DENIED.value:
        denied = None
    return Precedent(
        sentence=effect_sentence(bundle, _with_secrets_of_both(bundle, effect, story.effect)),
        agent=story.effect.agent,
        asked_at=story.effect.asked_at,
        state=story.effect.state,
        review_id=None if story.review is None else story.review.review_id,
        by=None if denied is None else denied.name,
        reason="" if denied is None else denied.reason or "",
    )


def current_secrets(bundle: Bundle, effect: EffectRow) -> list[str]:
    """Secret pointers of an effect, by its own manifest and by the current one."""
    today = bundle.manifests.get(effect.tool)
    return [*effect.secret, *(() if today is None else today.secret)]


def _with_secrets_of_both(bundle: Bundle, effect: EffectRow, then: EffectRow) -> EffectRow:
    """The earlier effect with the secrets of both hidden; everything is hidden if its tool has no manifest
    any more.
    """
    known = manifest_for(bundle, then.tool, then.tool_digest) or bundle.manifests.get(then.tool)
    secret = [*then.secret, *current_secrets(bundle, effect)] if known is not None else [""]
    return EffectRow(**vars(then) | {"secret": secret})


_SOURCE = "meter "


def meter_lines(bundle: Bundle, effect: EffectRow, decision: DecisionRow) -> tuple[MeterLine, ...]:
    """Every meter of the active bundle that the decision used."""
    return tuple(
        _line(bundle, effect, meter, decision.history[meter.name])
        for meter in bundle.meters.get(effect.tool, ())
        if meter.name in decision.history
    )


def is_meter_fact(source: str, bundle: Bundle, effect: EffectRow, decision: DecisionRow) -> bool:
    """Whether a fact is the value of a meter that has its own line."""
    name = source.removeprefix(_SOURCE)
    known = (meter.name for meter in bundle.meters.get(effect.tool, ()))
    return source.startswith(_SOURCE) and name in decision.history and name in known


def _line(bundle: Bundle, effect: EffectRow, meter: Meter, before: int) -> MeterLine:
    hidden = meter.field != COUNT and is_hidden(current_secrets(bundle, effect), meter.field)
    return MeterLine(
        name=meter.name,
        doc=meter.doc,
        per=meter.per,
        window=meter.window.words,
        until=meter.window.ends(effect.asked_at),
        before=before,
        this=None if hidden else meter.amount(load(effect.args)),
        currency=meter.currency,
        limit=_limit(bundle, effect, meter),
    )


def _limit(bundle: Bundle, effect: EffectRow, meter: Meter) -> MeterLimit | None:
    manifest = bundle.manifests.get(effect.tool)
    found = find_limit(
        bundle.policies.values(),
        meter=meter.name,
        field=tuple(pointer_tokens(meter.field)),
        action=effect.tool,
        groups=frozenset() if manifest is None else frozenset(manifest.groups),
    )
    if found is None:
        return None
    return MeterLimit(found.total, found.source.id, found.source.title, found.asks)
