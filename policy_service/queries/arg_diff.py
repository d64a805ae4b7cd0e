"""Differences between the arguments a person read and the current ones."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from sqlalchemy import Connection

from countersign.contract import JSON, ErrorCode, canonicalize, pointer_to
from policy_service.errors import ConflictError
from policy_service.queries import repository
from policy_service.queries.effects import args_of, hidden_text, is_hidden
from policy_service.queries.repository import Snapshot
from policy_service.queries.review_models import ArgChange
from policy_service.storage.tables import EffectRow

_ABSENT = "(absent)"


def stale_review(
    conn: Connection, read: Snapshot, effect: EffectRow, rev: int, undone: str = "your vote was not counted"
) -> ConflictError:
    """409 stale_review with the difference to the newest revision. ``rev`` is the revision that was read."""
    head = repository.require_transaction(conn, read.transaction.txn)
    current = head.find(effect.effect_id)
    review = head.review_of(current) if current is not None else None
    return ConflictError(
        f"{undone}: it has changed since you read it (revision {head.transaction.rev} is the newest)",
        code=ErrorCode.STALE_REVIEW,
        rev=head.transaction.rev,
        read_rev=rev,
        review_id=review.review_id if review is not None else read_review_id(read, effect),
        changed=diff_effects(effect, current),
        undone=undone,
    )


def read_review_id(read: Snapshot, effect: EffectRow) -> str:
    """The id of the review the person was reading."""
    review = read.review_of(effect)
    return review.review_id if review is not None else ""


def diff_effects(read: EffectRow, now: EffectRow | None) -> list[dict[str, str]]:
    """The changed arguments in canonical JSON. All of them if the effect was removed; secrets stay hidden."""
    secret = [*read.secret, *([] if now is None else now.secret)]
    changes = diff_args(args_of(read), {} if now is None else args_of(now), secret)
    return [{"name": change.name, "read": change.read, "now": change.now} for change in changes]


def diff_args(
    then: Mapping[str, JSON],
    today: Mapping[str, JSON],
    secret: Sequence[str],
    recipients: Collection[str] = (),
) -> tuple[ArgChange, ...]:
    """The arguments that differ, in order; `recipients` are pointers."""
    return tuple(
        ArgChange(
            name, _shown(then, name, secret), _shown(today, name, secret), pointer_to(name) in recipients
        )
        for name in dict.fromkeys([*then, *today])
        if _text(then, name) != _text(today, name)
    )


def _text(args: Mapping[str, JSON], name: str) -> bytes | None:
    """Canonical bytes for comparison: in Python 1 == True, but policies and people distinguish them."""
    return canonicalize(args[name]) if name in args else None


def _shown(args: Mapping[str, JSON], name: str, secret: Sequence[str]) -> str:
    if name not in args:
        return _ABSENT
    if is_hidden(secret, pointer_to(name)):
        return hidden_text(args[name])
    return canonicalize(args[name]).decode()
