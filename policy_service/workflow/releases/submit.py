"""Submit: identify the effects, gather facts, decide, and store everything in one unit of work.

If every effect is released at once, and the agent redeems for itself and named an attempt, the same unit redeems them
too. That saves a round trip in the most common case; the policy was evaluated in this very unit.

Submitting again under the same run key:

- An open transaction is returned as it is. Another list supersedes it.
- A redeemed transaction is returned with its outcome; for another list the response is 409 `already_redeemed`.
- A transaction that ended unredeemed is decided again as a new revision, unless a person denied this very list.
- An archived transaction stays closed: 409, `already_redeemed` with its outcome if anything was redeemed. A trigger
  refuses to store it again, so that a new transaction costs no query for this.
- An accepted proposal applies to its call for as long as the run key is used: submitting the call again never brings
  the staged arguments back.

An idempotency key belongs to one agent and names one transaction. It is stored in the unit that creates the
transaction, with the digest of the body and without a response, so a repeated request returns the current state.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from functools import partial

from sqlalchemy import delete, select
from sqlalchemy.exc import IntegrityError
from sqlmodel import col

from countersign.contract import EffectState, ErrorCode, ReceiptClaims, ReleaseClaims, TxnState
from countersign.contract.wire import SubmitRequest
from policy_service import tracing
from policy_service.errors import ConflictError, InvalidRequestError, NotFoundError
from policy_service.identity.agents import Caller
from policy_service.pap.bundle import Bundle
from policy_service.queries import repository
from policy_service.queries.archived import require_not_archived
from policy_service.queries.context import Context
from policy_service.queries.repository import Snapshot
from policy_service.storage.advisory_locks import lock_transaction
from policy_service.storage.core import find_one, insert_row_or_ignore, table
from policy_service.storage.database import Tx
from policy_service.storage.review_tables import Edits, accepted_proposals, edits_of
from policy_service.storage.system_tables import IdempotencyRow
from policy_service.storage.tables import AgentRow, AttemptRow, EffectRow, VoteRow
from policy_service.workflow.authorization import require_active_caller, require_not_stopped
from policy_service.workflow.effects.digests import IdentifiedTransaction, identify_transaction
from policy_service.workflow.effects.evaluation import (
    gather_facts,
    require_current_bundle,
    with_stable_bundle,
)
from policy_service.workflow.effects.outcomes import expire_if_unanswered, expire_if_unused
from policy_service.workflow.effects.revisions import RevisionRequest, create_revision, supersede
from policy_service.workflow.releases.redeem import (
    already_redeemed_error,
    receipt_for_attempt,
    redeem_effects,
)
from policy_service.workflow.releases.release import build_releases, mint, sign_releases
from policy_service.workflow.reviews.unsatisfiable import check_new_reviews
from policy_service.workflow.transitions import TransitionReason

_REDEEMED = frozenset({TxnState.REDEEMED, TxnState.SETTLED, TxnState.UNSETTLED})
_OPEN = frozenset({TxnState.REVIEW, TxnState.READY})


@dataclass(frozen=True)
class IdempotencyKey:
    """An Idempotency-Key header with the route and body it was sent for."""

    agent: str
    value: str
    route: str
    body_digest: str


@dataclass(frozen=True)
class SubmitResult:
    """The transaction, whether a revision was created, and its releases and receipt if it was redeemed at once."""

    snapshot: Snapshot
    created: bool
    releases: tuple[str, ...] = ()
    receipt: str | None = None


@dataclass(frozen=True)
class _Submission:
    """What the unit of work needs, gathered before it begins."""

    caller: Caller
    request: SubmitRequest
    key: IdempotencyKey
    edits: Edits
    revision: RevisionRequest

    @property
    def named(self) -> IdentifiedTransaction:
        return self.revision.named


@dataclass(frozen=True)
class _Stored:
    """What a unit of work leaves: the transaction, and the tokens to sign."""

    snapshot: Snapshot
    created: bool
    releases: tuple[ReleaseClaims, ...] = ()
    receipt: ReceiptClaims | None = None


class _ArgumentsEditedError(Exception):
    """Other edits apply to these calls than the submission was identified with: identify it again with these."""

    def __init__(self, edits: Edits) -> None:
        super().__init__("the arguments of a call were edited")
        self.edits = edits


async def submit(ctx: Context, caller: Caller, request: SubmitRequest, key: IdempotencyKey) -> SubmitResult:
    """Submit the staged effects of one transaction.

    Raises:
        InvalidRequestError: names that do not match, mixed_audience, idempotency_key_reused.
        ConflictError: other_epoch; already_redeemed with another list, or if it is archived.
        ForbiddenError: the agent is frozen or not enrolled, or a tool is stopped.
        UnauthenticatedError: its key was revoked meanwhile.
        QuotaError: too_many_open.
    """
    _require_current_epoch(ctx, request.epoch)

    async def work(bundle: Bundle) -> _Stored:
        edits: Edits = {}
        while True:  # once more for each proposal that was accepted meanwhile
            submission = await _prepare(ctx, bundle, caller, request, key, edits)
            try:
                return await ctx.db.write(partial(_submit_and_redeem, ctx=ctx, submission=submission))
            except _ArgumentsEditedError as edited:
                edits = edited.edits
            except (IntegrityError, NotFoundError):
                # the database refuses to store an archived transaction, or has only its idempotency key
                await ctx.db.read(partial(require_not_archived, txn=submission.named.txn))
                raise

    stored = await with_stable_bundle(ctx, work)
    if stored.receipt is None:
        snapshot = await check_new_reviews(ctx, stored.snapshot) if stored.created else stored.snapshot
        return SubmitResult(snapshot, stored.created)
    receipt = ctx.signer.sign_receipt(stored.receipt)
    return SubmitResult(stored.snapshot, stored.created, sign_releases(ctx, stored.releases), receipt)


def _require_current_epoch(ctx: Context, epoch: int | None) -> None:
    """Refuse a submission of a caller that has seen another epoch than this one.

    Raises:
        ConflictError: other_epoch, with the current epoch.
    """
    if epoch is None or epoch == ctx.epoch():
        return
    if epoch < ctx.epoch():
        text = (
            f"the service's database was restored since (epoch {ctx.epoch()}): report what was redeemed before, with "
            "its receipts, then submit again"
        )
    else:
        text = (
            f"this service is in epoch {ctx.epoch()} and the request names epoch {epoch}, so this is an older copy of "
            "the service; inform its operator"
        )
    raise ConflictError(text, code=ErrorCode.OTHER_EPOCH, epoch=ctx.epoch())


async def _prepare(
    ctx: Context, bundle: Bundle, caller: Caller, request: SubmitRequest, key: IdempotencyKey, edits: Edits
) -> _Submission:
    named = identify_transaction(bundle, caller.agent, request, edits)
    facts = await gather_facts(bundle, named.effects, ctx.clock())
    revision = RevisionRequest(
        bundle=bundle,
        named=named,
        facts=facts,
        run_key=request.run_key,
        independent=request.independent,
        claimed={} if request.claimed is None else request.claimed.model_dump(exclude_none=True),
        method=caller.method,
        jkt=caller.jkt,
        trace=tracing.current_traceparent(),
    )
    return _Submission(caller, request, key, edits, revision)


def _submit_and_redeem(tx: Tx, ctx: Context, submission: _Submission) -> _Stored:
    tx = lock_transaction(tx, submission.named.txn)
    stored = _submit(tx, ctx, submission)
    caller, snapshot, attempt_id = submission.caller, stored.snapshot, submission.request.attempt_id
    transaction = snapshot.transaction
    until = transaction.valid_until
    if attempt_id is None or caller.agent != transaction.aud or until is None:
        return stored
    known = repository.attempt_of(tx.conn, caller.agent, attempt_id)
    if known is not None:
        return _repeat(tx, ctx, caller, stored, known, until)
    # edited arguments are not what the caller sent: it must see them before they are redeemed
    if not stored.created or transaction.state != TxnState.READY.value or transaction.edited_by:
        return stored
    cause = TransitionReason.by_agent(caller.agent, "release")
    releases = mint(tx, ctx, snapshot, snapshot.effects, caller, until, cause)
    jtis = {claims.detail.effect_id: claims.jti for claims in releases}
    bundle = submission.revision.bundle
    receipt = redeem_effects(tx, ctx, bundle, snapshot, snapshot.effects, caller, attempt_id, jtis)
    return _Stored(snapshot, stored.created, tuple(releases), receipt)


def _repeat(
    tx: Tx, ctx: Context, caller: Caller, stored: _Stored, attempt: AttemptRow, until: datetime
) -> _Stored:
    """Repeat a lost response: the same releases and receipt, for the caller's key."""
    snapshot = stored.snapshot
    if attempt.kind != "effect" or attempt.txn != snapshot.transaction.txn:
        return stored
    jtis = {e: row.jti or "" for e, row in repository.redemptions_of(tx.conn, attempt).items()}
    releases = build_releases(tx, ctx, snapshot, snapshot.effects, caller, until, jtis)
    receipt = receipt_for_attempt(tx, ctx, snapshot, attempt, caller)
    return _Stored(snapshot, created=False, releases=tuple(releases), receipt=receipt)


def _submit(tx: Tx, ctx: Context, submission: _Submission) -> _Stored:
    require_current_bundle(ctx, submission.revision.bundle)
    agent, stopped = require_active_caller(tx, submission.caller)
    named = submission.named
    require_not_stopped(stopped, [effect.tool for effect in named.effects])
    if (known := _claim_key(tx, submission.key, named.txn)) is not None:
        return _Stored(repository.require_transaction(tx.conn, known), created=False)
    head = repository.load(tx.conn, named.txn)
    if head is not None:
        return _submit_again(tx, ctx, submission, agent, head)
    cause = TransitionReason.by_agent(agent.name, "submit")
    return _Stored(create_revision(tx, ctx, submission.revision, agent, 1, cause, first=True), created=True)


def _submit_again(tx: Tx, ctx: Context, submission: _Submission, agent: AgentRow, head: Snapshot) -> _Stored:
    if not expire_if_unused(tx, head):
        expire_if_unanswered(tx, head)
    named = submission.named
    same_list = named.calls == _calls(head)
    state = TxnState(head.transaction.state)
    redeemed = state in _REDEEMED or any(effect.redeemed_by is not None for effect in head.effects)
    if redeemed and not same_list:
        raise already_redeemed_error(head, "this run key was redeemed with another list of calls")
    if same_list and (redeemed or state in _OPEN):
        return _Stored(head, created=False)
    if (denied := _denied_by_person(tx, named)) is not None:
        return _Stored(denied, created=False)
    if (edits := edits_of(accepted_proposals(tx.conn, named.txn))) != submission.edits:
        raise _ArgumentsEditedError(edits)
    cause = TransitionReason.by_agent(agent.name, "submit")
    if state in _OPEN:
        supersede(tx, head, cause)
    rev = head.transaction.rev + 1
    return _Stored(create_revision(tx, ctx, submission.revision, agent, rev, cause), created=True)


def _calls(snapshot: Snapshot) -> list[tuple[str, str]]:
    return [(effect.call_key, effect.tool_digest) for effect in snapshot.effects]


def _denied_by_person(tx: Tx, named: IdentifiedTransaction) -> Snapshot | None:
    """The newest revision with this list that a person denied. Submitting another list in between changes nothing."""
    effects, votes = table(EffectRow).c, table(VoteRow).c
    query = (
        select(effects.rev)
        .join(table(VoteRow), (votes.effect_id == effects.effect_id) & (votes.rev == effects.rev))
        .where(effects.txn == named.txn, effects.state == EffectState.DENIED.value)
        .where(votes.verdict == "deny", votes.late.is_(False))
        .distinct()
        .order_by(effects.rev.desc())
    )
    for rev in tx.conn.execute(query).scalars().all():
        snapshot = repository.require_transaction(tx.conn, named.txn, rev)
        if named.calls == _calls(snapshot):
            return snapshot
    return None


# -- idempotency keys --------------------------------------------------------------------------------------------------


def _claim_key(tx: Tx, key: IdempotencyKey, txn: str) -> str | None:
    """Bind a new key to this transaction; for a known key, return the transaction it is bound to.

    Raises:
        InvalidRequestError: idempotency_key_reused: the key was used for another body or route.
    """
    row = IdempotencyRow(
        agent=key.agent,
        key=key.value,
        route=key.route,
        body_digest=key.body_digest,
        resource=txn,
        created_at=tx.now,
    )
    if insert_row_or_ignore(tx.conn, row):
        return None
    known = find_one(tx.conn, IdempotencyRow, agent=key.agent, key=key.value)
    if known is None or (known.route, known.body_digest) != (key.route, key.body_digest):
        raise InvalidRequestError(
            "this idempotency key was used for another request; use a new key for a new body",
            code=ErrorCode.IDEMPOTENCY_KEY_REUSED,
        )
    return known.resource


def delete_expired_keys(tx: Tx, before: datetime) -> int:
    """Delete idempotency keys that were created before this time; returns how many."""
    return tx.conn.execute(delete(IdempotencyRow).where(col(IdempotencyRow.created_at) < before)).rowcount
