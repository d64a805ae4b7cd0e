"""Break-glass as the count sees it: who signed, what policy says of them now, and whether that opens the effect.

The domain refuses first: nobody of the requester's side opens anything for it, whatever the bundle says. Then policy
names people, and nobody is named by default. It is asked again at every count, so a signature whose person may no
longer open it leaves the count, as a vote does.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Literal, cast

from policy_service.domain.gates import Gate, merge
from policy_service.domain.people import BREAK_GLASS, BREAK_GLASS_ALONE
from policy_service.domain.quorum import Opening, Signature, opening
from policy_service.pap.bundle import Bundle
from policy_service.pdp.approve import Approver, can_do
from policy_service.storage.tables import AgentRow, EffectRow, ReviewRow, VoteRow
from policy_service.workflow.context import Context
from policy_service.workflow.effects.ballots import groups_now, person_key, requesters_side, review_facts
from policy_service.workflow.records import Snapshot


def signatures_on(snapshot: Snapshot, effect: EffectRow) -> list[VoteRow]:
    """Who signed for an opening of this revision, in time and not revoked since."""
    return [
        vote
        for vote in snapshot.votes_on(effect)
        if vote.verdict == BREAK_GLASS and not vote.late and vote.revoked_at is None
    ]


def opening_of(
    ctx: Context,
    bundle: Bundle,
    snapshot: Snapshot,
    effect: EffectRow,
    agent: AgentRow,
    gates: Sequence[Gate],
    now: datetime,
) -> Opening | None:
    """What the signatures come to now."""
    signed, review = weighed(ctx, bundle, snapshot, effect, agent, gates, now), snapshot.review_of(effect)
    if not signed or review is None:
        return None
    return opening(merge(gates), signed, excluded=requesters_side(agent, review))


def weighed(
    ctx: Context,
    bundle: Bundle,
    snapshot: Snapshot,
    effect: EffectRow,
    agent: AgentRow,
    gates: Sequence[Gate],
    now: datetime,
) -> list[Signature]:
    """The signatures that stand, each with what policy says of its person now."""
    review, found = snapshot.review_of(effect), list[Signature]()
    if review is None:
        return found
    for vote in signatures_on(snapshot, effect):
        person = person_key(vote.iss, vote.sub)
        groups = groups_now(bundle, person, frozenset(vote.groups))
        may, alone = (
            is_named(ctx, bundle, agent, review, gates, action, person, groups, vote.assurance, now)
            for action in (BREAK_GLASS, BREAK_GLASS_ALONE)
        )
        found.append(Signature(vote.vote_id, person, vote.step_up, may, alone))
    return found


def is_named(
    ctx: Context,
    bundle: Bundle,
    agent: AgentRow,
    review: ReviewRow,
    gates: Sequence[Gate],
    action: str,
    person: str,
    groups: frozenset[str],
    assurance: str,
    now: datetime,
) -> bool:
    """Whether policy names this person for it; a bundle that names nobody means nobody."""
    who = Approver(person, groups, cast(Literal["oidc", "dev"], assurance))
    what = review_facts(agent, review, gates)
    return bool(can_do(bundle.rules, action, who, what, now=now, env=ctx.settings.environment))
