"""Edits: other arguments for a call that people proposed, and that the agent's side accepted."""

from __future__ import annotations

from dataclasses import replace

from countersign.commit.plan import Plan, PlannedCall
from countersign.contract.admission import JSON, load
from countersign.contract.digests import canonicalize
from countersign.contract.wire import EffectView, ProposalView, TransactionView
from countersign.errors import ReleaseRefused
from countersign.errors.pending import Proposal


def with_accepted_edits(plan: Plan, view: TransactionView) -> Plan:
    """The plan with the bytes of an accepted edit. Every digest is computed again.

    Raises:
        ReleaseRefused: the service holds another list, or its digests are not those of its bytes.
    """
    if len(view.effects) != len(plan.calls):
        raise ReleaseRefused(plan.txn, "the service holds another list of effects under this key")
    calls = tuple(_edited(call, one, plan.txn) for call, one in zip(plan.calls, view.effects, strict=True))
    edited = replace(plan, calls=calls)
    if edited.txn_digest != view.txn_digest:
        raise ReleaseRefused(plan.txn, "the service's txn_digest is not that of the effects it shows")
    return edited


def _edited(call: PlannedCall, view: EffectView, txn: str) -> PlannedCall:
    """Apply an edit to one call. It may replace the args only; all else must be as staged (design section 6)."""
    staged_effect = call.effect
    kept = (
        staged_effect.effect_id,
        staged_effect.seq,
        staged_effect.tool,
        staged_effect.tool_digest,
        staged_effect.call_key,
    )
    if (view.effect_id, view.seq, view.tool, view.tool_digest, view.call_key) != kept:
        raise ReleaseRefused(txn, f"the service shows another call in place of {staged_effect.tool!r}")
    raw = canonicalize(view.args)
    effect = replace(staged_effect, args_bytes=raw, resource=call.manifest.resource_of(load(raw)))
    if effect.digest != view.effect_digest or effect.resource != view.resource:
        raise ReleaseRefused(
            txn, f"the service's digest of {staged_effect.tool!r} is not that of the bytes it shows"
        )
    return replace(call, effect=effect)


def edits_in_force(view: TransactionView) -> list[object]:
    """The accepted edits as the journal keeps them: the proposal, its author, who accepted it."""
    return [edit.model_dump(mode="json", exclude_none=True) for one in view.effects for edit in one.edits]


def proposal_of(one: EffectView, proposed: ProposalView) -> Proposal:
    """An open proposal against the current arguments."""
    return Proposal(
        proposal_id=proposed.proposal_id,
        tool=one.tool,
        effect_id=one.effect_id,
        args=dict(proposed.args),
        instead_of=dict(one.args),
        reason=proposed.reason,
        person=proposed.person,
        name=proposed.name,
    )


def edit_in_force(one: EffectView, staged: dict[str, JSON]) -> Proposal:
    """The arguments in force against the staged ones, with the last person who changed them."""
    last = one.edits[-1] if one.edits else None
    return Proposal(
        proposal_id="" if last is None else last.proposal_id,
        tool=one.tool,
        effect_id=one.effect_id,
        args=dict(one.args),
        instead_of=staged,
        reason="no reason was given" if last is None else last.reason,
        person="" if last is None else last.person,
        name="somebody" if last is None else last.name,
        accepted_by="the agent's side" if last is None or last.decided_by is None else last.decided_by,
    )
