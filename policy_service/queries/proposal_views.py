"""Proposals as people read them: cards on the review page, the form's fields, and a preview."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias

from sqlalchemy import Connection

from countersign.contract import JSON, ContractError, ErrorCode, admit, canonicalize, pointer_to
from policy_service.domain.policy_request import InvalidArgsError
from policy_service.errors import ForbiddenError, InvalidRequestError, NotFoundError, RequestError
from policy_service.identity.people import names_of
from policy_service.pap.bundle import Bundle
from policy_service.queries import repository
from policy_service.queries.arg_diff import diff_args
from policy_service.queries.context import Context
from policy_service.queries.effects import (
    Piece,
    args_of,
    effect_sentence,
    is_hidden,
    manifest_for,
    money_at,
    schema_properties,
)
from policy_service.queries.review_context import ReviewContext, read_review_context
from policy_service.queries.review_models import ArgChange, ProposalCard
from policy_service.queries.vote_eligibility import Voter, person_key, vote_refusal
from policy_service.storage.core import find_one
from policy_service.storage.review_tables import ProposalRow, proposal_by_id
from policy_service.storage.tables import EffectRow


def hidden_args(effect: EffectRow) -> dict[str, JSON]:
    """The arguments of an effect that people do not see."""
    return {
        name: value for name, value in args_of(effect).items() if is_hidden(effect.secret, pointer_to(name))
    }


def canonical_proposed_args(bundle: Bundle, effect: EffectRow, args: Mapping[str, JSON]) -> bytes:
    """The canonical bytes of proposed arguments, with the hidden ones added.

    Raises:
        RequestError: an admission code, or `invalid_request`, naming the argument.
    """
    rules = bundle.rules.versions.get((effect.tool, effect.tool_digest))
    if rules is None:
        raise InvalidRequestError(
            f"the bundle in force does not describe this version of {effect.tool!r}, so no other arguments can be "
            "checked; deny it, so that the agent can submit it again"
        )
    for name in args:
        if is_hidden(effect.secret, pointer_to(name)):
            raise InvalidRequestError(
                f"{name}: its value is hidden from people, so leave it out; it stays as it is"
            )
    try:
        admitted = admit({**args, **hidden_args(effect)})
    except ContractError as error:
        raise RequestError(str(error), code=error.code) from error
    try:
        rules.codec.encode(admitted)
        rules.manifest.resource_of(admitted)
    except (InvalidArgsError, ContractError) as error:
        raise InvalidRequestError(f"these arguments do not fit {effect.tool!r}: {error}") from error
    raw = canonicalize(admitted)
    if raw == effect.args:
        raise InvalidRequestError("these are the arguments as they are now; change at least one")
    return raw


FieldKind: TypeAlias = Literal["text", "integer", "boolean", "choice", "json"]


@dataclass(frozen=True, slots=True)
class ProposalField:
    """One argument of the form, in schema order."""

    name: str
    kind: FieldKind
    required: bool
    present: bool
    value: JSON
    choices: tuple[str, ...] = ()
    recipient: bool = False


@dataclass(frozen=True, slots=True)
class ProposalForm:
    """What a person may change of an effect, and on which exact bytes."""

    review_id: str
    rev: int
    effect_digest: str
    txn_digest: str
    tool: str
    agent: str
    owner: str | None
    sentence: tuple[Piece, ...]
    fields: tuple[ProposalField, ...]
    kept: tuple[str, ...]  # hidden arguments, which do not change


@dataclass(frozen=True, slots=True)
class ProposalPreview:
    """A proposal before it is sent."""

    sentence: tuple[Piece, ...]
    changes: tuple[ArgChange, ...]


def with_args(effect: EffectRow, args: bytes) -> EffectRow:
    """The same call with other arguments, for display. Its digests are those of the original arguments."""
    return EffectRow(**{**effect.__dict__, "args": args})


# -- the cards of a review's page --------------------------------------------------------------------------------------


def open_proposal_cards(bundle: Bundle, case: ReviewContext, voter: Voter) -> tuple[ProposalCard, ...]:
    """The open proposals of a review, oldest first."""
    rows = case.snapshot.open_proposals_of(case.effect) if case.review.state == "open" else []
    return tuple(_card(bundle, case, voter, row, case.effect) for row in rows)


def accepted_proposal_cards(
    conn: Connection, bundle: Bundle, case: ReviewContext, voter: Voter
) -> tuple[ProposalCard, ...]:
    """The accepted proposals that made the arguments of an effect, in order of acceptance."""
    rows = case.snapshot.edits_of(case.effect)
    actors = {row.decided_by or "" for row in rows}
    keys = {actor.partition(":")[2] for actor in actors if actor.startswith("person:")}
    names = names_of(conn, keys)
    return tuple(
        _card(bundle, case, voter, row, _base_effect(conn, row) or case.effect, names) for row in rows
    )


def changes_since_staged(conn: Connection, bundle: Bundle, case: ReviewContext) -> tuple[ArgChange, ...]:
    """The difference between the staged arguments and the current ones."""
    first = next(iter(case.snapshot.edits_of(case.effect)), None)
    staged = None if first is None else _base_effect(conn, first)
    return () if staged is None else _changes(bundle, case.effect, args_of(staged), args_of(case.effect))


def _base_effect(conn: Connection, row: ProposalRow) -> EffectRow | None:
    return find_one(conn, EffectRow, effect_id=row.effect_id, rev=row.rev)


def _card(
    bundle: Bundle,
    case: ReviewContext,
    voter: Voter,
    row: ProposalRow,
    made_on: EffectRow,
    names: Mapping[str, str] | None = None,
) -> ProposalCard:
    mine = (row.iss, row.sub) == (voter.iss, voter.sub)
    proposed = with_args(made_on, row.args)
    return ProposalCard(
        proposal_id=row.proposal_id,
        person_name=bundle.directory.name_of(person_key(row.iss, row.sub)) or row.name,
        reason=row.reason,
        at=row.proposed_at,
        assurance=row.assurance,
        sentence=effect_sentence(bundle, proposed),
        changes=_changes(bundle, made_on, args_of(made_on), args_of(proposed)),
        rev=row.rev,
        mine=mine,
        may_answer=voter.key == case.agent.owner and not mine,
        accepted_by=None if names is None else _name(bundle, row.decided_by or "", names),
        accepted_at=row.decided_at,
    )


def _name(bundle: Bundle, actor: str, names: Mapping[str, str]) -> str:
    kind, _, name = actor.partition(":")
    if kind == "person":
        return bundle.directory.name_of(name) or names.get(name) or name
    return name or kind


def _changes(
    bundle: Bundle, effect: EffectRow, then: Mapping[str, JSON], today: Mapping[str, JSON]
) -> tuple[ArgChange, ...]:
    manifest = manifest_for(bundle, effect.tool, effect.tool_digest)
    if manifest is None:
        return diff_args(then, today, effect.secret)
    return tuple(
        change
        if is_hidden(effect.secret, place := pointer_to(change.name))
        else replace(
            change,
            read_money=money_at(manifest, dict(then), place),
            now_money=money_at(manifest, dict(today), place),
        )
        for change in diff_args(then, today, effect.secret, manifest.recipients)
    )


# -- the form ---------------------------------------------------------------------------------------------------------


def may_propose(bundle: Bundle, case: ReviewContext, why: str | None) -> bool:
    """Whether a person may propose other arguments; ``why`` is the reason why they may not vote."""
    known = manifest_for(bundle, case.effect.tool, case.effect.tool_digest) is not None
    is_open = case.review.state == "open" and case.snapshot.superseded_by is None
    return why is None and known and is_open and case.effect.kind == "effect"


async def proposal_form(ctx: Context, voter: Voter, review_id: str) -> ProposalForm:
    """What this person may change of an effect.

    Raises:
        NotFoundError: there is no such review.
        ForbiddenError: not_eligible.
    """
    case = await ctx.db.read(lambda conn: read_review_context(conn, review_id))
    bundle = ctx.active.current
    _require_proposing(ctx, bundle, case, voter)
    manifest = manifest_for(bundle, case.effect.tool, case.effect.tool_digest)
    args, effect = args_of(case.effect), case.effect
    properties = schema_properties(manifest)
    wanted = frozenset() if manifest is None else frozenset(_texts(manifest.args.get("required")))
    recipients = () if manifest is None else manifest.recipients
    shown = [name for name in properties if not is_hidden(effect.secret, pointer_to(name))]
    return ProposalForm(
        review_id=review_id,
        rev=effect.rev,
        effect_digest=effect.effect_digest,
        txn_digest=case.snapshot.transaction.txn_digest,
        tool=effect.tool,
        agent=effect.agent,
        owner=case.agent.owner,
        sentence=effect_sentence(bundle, effect),
        fields=tuple(
            ProposalField(
                name=name,
                kind=_kind(properties[name]),
                required=name in wanted,
                present=name in args,
                value=args.get(name),
                choices=_choices(properties[name]),
                recipient=pointer_to(name) in recipients,
            )
            for name in shown
        ),
        kept=tuple(name for name in args if name not in shown),
    )


async def preview_proposal(
    ctx: Context, voter: Voter, review_id: str, args: Mapping[str, JSON]
) -> ProposalPreview:
    """The preview of a proposal. Nothing is written.

    Raises:
        NotFoundError, ForbiddenError, RequestError: as for sending it.
    """
    case = await ctx.db.read(lambda conn: read_review_context(conn, review_id))
    bundle = ctx.active.current
    _require_proposing(ctx, bundle, case, voter)
    raw = canonical_proposed_args(bundle, case.effect, args)
    proposed = with_args(case.effect, raw)
    return ProposalPreview(
        effect_sentence(bundle, proposed),
        _changes(bundle, case.effect, args_of(case.effect), args_of(proposed)),
    )


async def review_of_proposal(ctx: Context, proposal_id: str) -> str:
    """The id of the review a proposal was made on."""
    return (await ctx.db.read(lambda conn: require_proposal(conn, proposal_id))).review_id


async def review_after_acceptance(ctx: Context, snapshot: repository.Snapshot, proposal_id: str) -> str:
    """The id of the review of the new revision, or of the old one if it needs no review."""
    proposal = await ctx.db.read(lambda conn: require_proposal(conn, proposal_id))
    review = snapshot.reviews.get(proposal.effect_id)
    return proposal.review_id if review is None else review.review_id


def _require_proposing(ctx: Context, bundle: Bundle, case: ReviewContext, voter: Voter) -> None:
    why = vote_refusal(ctx, bundle, case.agent, case.review, case.gates, voter, ctx.clock())
    if not may_propose(bundle, case, why):
        raise ForbiddenError(
            why or "this cannot be changed: it has settled, or is a compensation",
            code=ErrorCode.NOT_ELIGIBLE,
        )


def _kind(schema: Any) -> FieldKind:
    if not isinstance(schema, Mapping):
        return "json"
    if _choices(schema):
        return "choice"
    kinds: dict[Any, FieldKind] = {"string": "text", "integer": "integer", "boolean": "boolean"}
    named = schema.get("type")
    return kinds.get(named, "json") if isinstance(named, str) else "json"


def _choices(schema: Any) -> tuple[str, ...]:
    listed = schema.get("enum") if isinstance(schema, Mapping) else None
    texts = _texts(listed)
    return texts if isinstance(listed, list) and len(texts) == len(listed) else ()


def _texts(value: Any) -> tuple[str, ...]:
    return tuple(one for one in value if isinstance(one, str)) if isinstance(value, list | tuple) else ()


def require_proposal(conn: Connection, proposal_id: str) -> ProposalRow:
    """The proposal with this id.

    Raises:
        NotFoundError: it does not exist.
    """
    proposal = proposal_by_id(conn, proposal_id)
    if proposal is None:
        raise _no_such(proposal_id)
    return proposal


def _no_such(proposal_id: str) -> NotFoundError:
    return NotFoundError(f"there is no proposal {proposal_id!r}")
