"""Revoke: end what was permitted before, by an operator.

An open effect ends `revoked`, with its transaction. A redeemed effect cannot be revoked, and the refusal says so. A
revoked person loses their sessions, and their votes stop counting; what only they approved needs other approvals, at
the latest when it is redeemed. Each revocation is audited with the operator's reason.

Revoking an agent or a commit ends many transactions, each in a unit of its own. The caller gets their ids and revokes
them one by one. An agent is frozen first, so no new one is created in between.

Lost passkeys are removed. Their votes stay valid, and the person enrolls anew, with a waiting time. A stolen passkey is
revoked, together with every passkey that it vouched for, directly or not: the thief could have enrolled one of their
own. The votes that these passkeys proved stop counting, like those of a revoked person.
"""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import select, update
from sqlmodel import col

from countersign.contract import EffectState
from policy_service.audit.log import append
from policy_service.errors import ConflictError, NotFoundError
from policy_service.identity.agents import OPERATOR, freeze, revoke_api_keys, revoke_keys_of
from policy_service.identity.passkeys import passkeys_of, remove_passkey
from policy_service.identity.people import ensure_person
from policy_service.identity.sessions import end_sessions_of
from policy_service.queries import repository
from policy_service.queries.repository import Snapshot
from policy_service.storage.advisory_locks import lock_exclusive, lock_transaction
from policy_service.storage.archive_tables import archived_count
from policy_service.storage.core import find_one, table
from policy_service.storage.database import Tx
from policy_service.storage.system_tables import AssertionRow, PasskeyRow
from policy_service.storage.tables import DecisionRow, EffectRow, PersonRow, VoteRow
from policy_service.workflow.effects.outcomes import end_effect
from policy_service.workflow.transitions import TransitionReason

_RECENT_DECISIONS, _RECENT_COMMITS = 1_000, 5  # searched, and named in a refusal
_OPEN = (EffectState.REVIEW.value, EffectState.RELEASED.value)


def revoke_effect(tx: Tx, effect_id: str, reason: str) -> str:
    """End one open effect or compensation; returns the id of its transaction.

    Raises:
        NotFoundError: there is no such effect.
        ConflictError: it is not open.
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
    _revoke_effect(tx, snapshot, effect, reason)
    return txn


def revoke_transaction(tx: Tx, txn: str, reason: str) -> None:
    """End an open transaction.

    Raises:
        NotFoundError: there is no such transaction.
        ConflictError: it is not open.
    """
    if not revoke_if_open(tx, txn, reason):
        state = repository.require_transaction(tx.conn, txn).transaction.state
        raise ConflictError(
            f"the transaction is {state}; only one that waits or is released can be revoked", state=state
        )


def revoke_effect_if_open(tx: Tx, effect_id: str, reason: str) -> bool:
    """End an effect or compensation if it is still open; whether it was.

    Raises:
        NotFoundError: there is no such effect.
    """
    try:
        revoke_effect(tx, effect_id, reason)
    except ConflictError:
        return False
    return True


def revoke_if_open(tx: Tx, txn: str, reason: str) -> bool:
    """End a transaction if it is still open; whether it was.

    Raises:
        NotFoundError: there is no such transaction.
    """
    tx = lock_transaction(tx, txn)
    snapshot = repository.require_transaction(tx.conn, txn)
    still = next((effect for effect in snapshot.effects if effect.state in _OPEN), None)
    if still is not None:
        _revoke_effect(tx, snapshot, still, reason)
    return still is not None


def _revoke_effect(tx: Tx, snapshot: Snapshot, effect: EffectRow, reason: str) -> None:
    if effect.state not in _OPEN:
        raise ConflictError(
            f"the effect is {effect.state}; only one that waits or is released can be revoked",
            state=effect.state,
        )
    cause = TransitionReason(OPERATOR, "revoked", {"reason": reason})
    end_effect(tx, snapshot, effect, EffectState.REVOKED, cause, reason)


def revoke_agent(tx: Tx, name: str, reason: str) -> list[str]:
    """Freeze an agent and revoke its keys; returns the ids of its open transactions.

    Raises:
        NotFoundError: there is no such agent.
    """
    freeze(tx, name)
    keys = revoke_keys_of(tx, name) + revoke_api_keys(tx, name)
    body = {"agent": name, "keys": keys, "reason": reason}
    append(tx, "agent_revoked", actor=OPERATOR, agent=name, body=body)
    open_ones = select(col(EffectRow.txn)).where(
        col(EffectRow.agent) == name, col(EffectRow.state).in_(_OPEN)
    )
    return sorted(set(tx.conn.execute(open_ones).scalars()))


def revoke_commit(tx: Tx, commit: str, reason: str) -> list[str]:
    """Record that the decisions of a policy commit are revoked; returns the open effects that it decided last.

    Raises:
        NotFoundError: the commit decided nothing that is in the database. Archived transactions have nothing open.
    """
    decided = select(col(DecisionRow.decision_id)).where(col(DecisionRow.commit) == commit)
    if tx.conn.execute(decided.limit(1)).first() is None:
        raise NotFoundError(
            f"nothing was decided by the commit {commit!r}; give it in full, as decisions name it. Recent commits: "
            f"{', '.join(_recent_commits(tx)) or 'none'}. Left out: {archived_count(tx.conn)} archived transactions, "
            "of which nothing is open"
        )
    append(tx, "commit_revoked", actor=OPERATOR, body={"commit": commit, "reason": reason})
    open_ones = (
        select(col(EffectRow.effect_id))
        .join(table(DecisionRow), col(DecisionRow.decision_id) == col(EffectRow.decision_id))
        .where(col(DecisionRow.commit) == commit, col(EffectRow.state).in_(_OPEN))
    )
    return sorted(set(tx.conn.execute(open_ones).scalars()))


def _recent_commits(tx: Tx) -> list[str]:
    """The commits of the newest decisions, newest first. A folder without git has ids of its own."""
    newest = (
        select(col(DecisionRow.commit)).order_by(col(DecisionRow.decision_id).desc()).limit(_RECENT_DECISIONS)
    )
    return list(dict.fromkeys(tx.conn.execute(newest).scalars()))[:_RECENT_COMMITS]


def revoke_approver(tx: Tx, iss: str, sub: str, reason: str) -> int:
    """Revoke a person: end their sessions and stop counting their votes; returns how many votes.

    A person who never signed in is refused when they do.
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
    """Permit a revoked person to decide again. Their revoked votes stay revoked.

    Raises:
        NotFoundError: the person is not revoked.
    """
    who = (col(PersonRow.iss) == iss, col(PersonRow.sub) == sub, col(PersonRow.revoked_at).is_not(None))
    if tx.conn.execute(update(PersonRow).where(*who).values(revoked_at=None)).rowcount == 0:
        raise NotFoundError(f"{iss}|{sub} is not revoked")
    why = {} if reason is None else {"reason": reason}
    append(tx, "approver_reinstated", actor=OPERATOR, body={"person": f"{iss}|{sub}", **why})


# -- passkeys ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RevokedPasskeys:
    """The revoked passkeys, the named one first, and the number of votes that stopped counting."""

    passkeys: tuple[str, ...]
    votes: int


def revoke_passkey(tx: Tx, passkey_id: str, reason: str) -> RevokedPasskeys:
    """Revoke a stolen passkey. A removed passkey can be revoked as well.

    Raises:
        NotFoundError: there is no such passkey.
    """
    row = find_one(tx.conn, PasskeyRow, passkey_id=passkey_id)
    if row is None:
        raise NotFoundError(f"there is no passkey {passkey_id!r}; `policy-service passkeys list` names them")
    person = f"{row.iss}|{row.sub}"
    lock_exclusive(tx, person)
    revoked = _and_vouched_for(row, passkeys_of(tx.conn, row.iss, row.sub))
    votes = 0
    for one in revoked:
        remove_passkey(tx, one, by=OPERATOR, actor=OPERATOR, reason=reason)
        left = _revoke_votes(tx, one.passkey_id)
        body = {"person": person, "passkey_id": one.passkey_id, "votes": left, "reason": reason}
        append(tx, "passkey_revoked", actor=OPERATOR, body=body)
        votes += left
    return RevokedPasskeys(tuple(one.passkey_id for one in revoked), votes)


def _and_vouched_for(row: PasskeyRow, oldest_first: list[PasskeyRow]) -> list[PasskeyRow]:
    """The passkey and all it vouched for. One pass suffices, because a passkey is older than those it vouches for."""
    found = {row.passkey_id: row}
    for one in oldest_first:
        if one.vouched_by in found:
            found[one.passkey_id] = one
    return list(found.values())


def _revoke_votes(tx: Tx, passkey_id: str) -> int:
    proved = select(col(AssertionRow.vote_id)).where(col(AssertionRow.passkey_id) == passkey_id)
    counted = (col(VoteRow.vote_id).in_(proved), col(VoteRow.revoked_at).is_(None))
    return tx.conn.execute(update(VoteRow).where(*counted).values(revoked_at=tx.now)).rowcount


def reset_passkeys(tx: Tx, iss: str, sub: str, reason: str) -> int:
    """Remove the passkeys of a person who lost them; returns how many.

    Raises:
        NotFoundError: the person has none.
    """
    lock_exclusive(tx, f"{iss}|{sub}")
    live = [row for row in passkeys_of(tx.conn, iss, sub) if row.removed_at is None]
    if not live:
        raise NotFoundError(f"{iss}|{sub} has no passkey")
    return sum(remove_passkey(tx, row, by=OPERATOR, actor=OPERATOR, reason=reason) for row in live)
