"""Revoke: what may not happen any more, though it was allowed.

An open effect ends `revoked` and takes its transaction along; what was redeemed is past stopping and is told so. A
person whose votes are revoked decides nothing any more: their sessions end, their votes leave every count, and what
only they had approved waits for people again at its redemption at the latest. Each revocation has an operator's words
in the log.

Revoking an agent or a commit ends many transactions; each is a unit of its own, so the caller is given their names and
revokes them one by one. An agent is frozen first, so none slips through in between.
"""

from __future__ import annotations

from sqlalchemy import select, update
from sqlmodel import col

from countersign.contract import EffectState
from policy_service.audit.log import append
from policy_service.errors import ConflictError, NotFoundError
from policy_service.identity.agents import OPERATOR, freeze, revoke_api_keys, revoke_keys_of
from policy_service.identity.people import ensure_person
from policy_service.identity.sessions import end_sessions_of
from policy_service.queries import repository
from policy_service.queries.repository import Snapshot
from policy_service.storage.advisory_locks import lock_exclusive, lock_transaction
from policy_service.storage.core import table
from policy_service.storage.database import Tx
from policy_service.storage.tables import DecisionRow, EffectRow, PersonRow, VoteRow
from policy_service.workflow.effects.termination import revoke_effect as end_revoked
from policy_service.workflow.transitions import TransitionReason

_LATELY, _NAMES = 1_000, 5  # decisions looked at, commits named: enough for the last few bundles
_OPEN = (EffectState.REVIEW.value, EffectState.RELEASED.value)


def revoke_effect(tx: Tx, effect_id: str, reason: str) -> str:
    """End one open effect, or one open compensation; its transaction's id.

    Raises:
        NotFoundError: there is no such effect.
        ConflictError: it is not open any more.
    """
    found = select(col(EffectRow.txn)).where(col(EffectRow.effect_id) == effect_id)
    txn = tx.conn.execute(found).scalars().first()
    if txn is None:
        raise NotFoundError(f"there is no effect {effect_id!r}")
    tx = lock_transaction(tx, txn)
    snapshot = repository.require_transaction(tx.conn, txn)
    effect = snapshot.find(effect_id)
    if effect is None:
        raise NotFoundError(f"the revision in force holds no effect {effect_id!r}")
    _end(tx, snapshot, effect, reason)
    return txn


def revoke_transaction(tx: Tx, txn: str, reason: str) -> None:
    """End an open transaction.

    Raises:
        NotFoundError: there is no such transaction.
        ConflictError: it is not open any more.
    """
    if not revoke_if_open(tx, txn, reason):
        state = repository.require_transaction(tx.conn, txn).transaction.state
        raise ConflictError(
            f"the transaction is {state}; only what waits or is released can be revoked", state=state
        )


def revoke_effect_if_open(tx: Tx, effect_id: str, reason: str) -> bool:
    """End an effect or compensation unless it ended by itself, or with a sibling; whether it was still open.

    Raises:
        NotFoundError: there is no such effect.
    """
    try:
        revoke_effect(tx, effect_id, reason)
    except ConflictError:
        return False
    return True


def revoke_if_open(tx: Tx, txn: str, reason: str) -> bool:
    """End a transaction unless it ended by itself meanwhile; whether it was still open.

    Raises:
        NotFoundError: there is no such transaction.
    """
    tx = lock_transaction(tx, txn)
    snapshot = repository.require_transaction(tx.conn, txn)
    still = next((effect for effect in snapshot.effects if effect.state in _OPEN), None)
    if still is not None:
        _end(tx, snapshot, still, reason)
    return still is not None


def _end(tx: Tx, snapshot: Snapshot, effect: EffectRow, reason: str) -> None:
    if effect.state not in _OPEN:
        raise ConflictError(
            f"the effect is {effect.state}; only what waits or is released can be revoked", state=effect.state
        )
    end_revoked(tx, snapshot, effect, TransitionReason(OPERATOR, "revoked", {"reason": reason}), reason)


def revoke_agent(tx: Tx, name: str, reason: str) -> list[str]:
    """Freeze an agent for good and end its keys; the transactions of its that are open still.

    Raises:
        NotFoundError: no such agent.
    """
    freeze(tx, name)
    keys = revoke_keys_of(tx, name) + revoke_api_keys(tx, name)
    append(
        tx, "agent_revoked", actor=OPERATOR, agent=name, body={"agent": name, "keys": keys, "reason": reason}
    )
    open_ones = select(col(EffectRow.txn)).where(
        col(EffectRow.agent) == name, col(EffectRow.state).in_(_OPEN)
    )
    return sorted(set(tx.conn.execute(open_ones).scalars()))


def revoke_commit(tx: Tx, commit: str, reason: str) -> list[str]:
    """Say that what a commit of the policies decided is not to stand; the open effects, and compensations, it decided
    last.

    Raises:
        NotFoundError: nothing was ever decided by it.
    """
    decided = select(col(DecisionRow.decision_id)).where(col(DecisionRow.commit) == commit)
    if tx.conn.execute(decided.limit(1)).first() is None:
        raise NotFoundError(
            f"nothing was decided by the commit {commit!r}; give it in full, as decisions name it; lately decided: "
            f"{', '.join(_commits_of_late(tx)) or 'nothing at all'}"
        )
    append(tx, "commit_revoked", actor=OPERATOR, body={"commit": commit, "reason": reason})
    open_ones = (
        select(col(EffectRow.effect_id))
        .join(table(DecisionRow), col(DecisionRow.decision_id) == col(EffectRow.decision_id))
        .where(col(DecisionRow.commit) == commit, col(EffectRow.state).in_(_OPEN))
    )
    return sorted(set(tx.conn.execute(open_ones).scalars()))


def _commits_of_late(tx: Tx) -> list[str]:
    """What decided the newest of everything, the last first: its names are not git's where the folder has no git."""
    newest = select(col(DecisionRow.commit)).order_by(col(DecisionRow.decision_id).desc()).limit(_LATELY)
    return list(dict.fromkeys(tx.conn.execute(newest).scalars()))[:_NAMES]


def revoke_approver(tx: Tx, iss: str, sub: str, reason: str) -> int:
    """Take a person out of every decision: no session, no vote that counts; how many votes left the count. Somebody
    who never signed in is refused when they come.
    """
    lock_exclusive(tx, f"{iss}|{sub}")
    ensure_person(tx, iss, sub)
    who = (col(PersonRow.iss) == iss, col(PersonRow.sub) == sub)
    tx.conn.execute(update(PersonRow).where(*who).values(revoked_at=tx.now))
    theirs = (col(VoteRow.iss) == iss, col(VoteRow.sub) == sub, col(VoteRow.revoked_at).is_(None))
    votes = tx.conn.execute(update(VoteRow).where(*theirs).values(revoked_at=tx.now)).rowcount
    end_sessions_of(tx, iss, sub)
    body = {"person": f"{iss}|{sub}", "votes": votes, "reason": reason}
    append(tx, "approver_revoked", actor=OPERATOR, body=body)
    return votes


def reinstate_approver(tx: Tx, iss: str, sub: str, reason: str | None = None) -> None:
    """Let a person decide again; the votes that were revoked stay so.

    Raises:
        NotFoundError: nobody of that name was revoked.
    """
    who = (col(PersonRow.iss) == iss, col(PersonRow.sub) == sub, col(PersonRow.revoked_at).is_not(None))
    if tx.conn.execute(update(PersonRow).where(*who).values(revoked_at=None)).rowcount == 0:
        raise NotFoundError(f"{iss}|{sub} is not revoked")
    why = {} if reason is None else {"reason": reason}
    append(tx, "approver_reinstated", actor=OPERATOR, body={"person": f"{iss}|{sub}", **why})
