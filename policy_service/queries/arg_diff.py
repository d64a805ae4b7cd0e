"""What changed between the bytes a person read and the bytes that stand now."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from sqlalchemy import Connection

from countersign.contract import JSON, ErrorCode, canonicalize, pointer_to
from policy_service.errors import ConflictError
from policy_service.queries import repository
from policy_service.queries.effect_text import hidden_text, is_hidden
from policy_service.queries.effects import args_of
from policy_service.queries.repository import Snapshot
from policy_service.queries.review_models import ArgChange
from policy_service.storage.tables import EffectRow

_ABSENT = "(absent)"


def stale_review(
    conn: Connection, read: Snapshot, effect: EffectRow, rev: int, undone: str = "your vote was not counted"
) -> ConflictError:
    """409: what did not happen, with the difference to what stands now. ``rev``: the revision that was read."""
    head = repository.require_transaction(conn, read.transaction.txn)
    stands = head.find(effect.effect_id)
    review = head.review_of(stands) if stands is not None else None
    return ConflictError(
        f"{undone}: what you read is not what stands now (revision {head.transaction.rev})",
        code=ErrorCode.STALE_REVIEW,
        rev=head.transaction.rev,
        read_rev=rev,
        review_id=review.review_id if review is not None else read_review_id(read, effect),
        changed=diff_effects(effect, stands),
        undone=undone,
    )


def read_review_id(read: Snapshot, effect: EffectRow) -> str:
    """The id of the review the person was reading."""
    review = read.review_of(effect)
    return review.review_id if review is not None else ""


def diff_effects(read: EffectRow, now: EffectRow | None) -> list[dict[str, str]]:
    """Argument by argument, in canonical JSON; an effect that is gone differs in all. Secrets stay hidden."""
    secret = [*read.secret, *([] if now is None else now.secret)]
    changes = diff_args(args_of(read), {} if now is None else args_of(now), secret)
    return [{"name": change.name, "read": change.read, "now": change.now} for change in changes]


def diff_args(
    then: Mapping[str, JSON],
    today: Mapping[str, JSON],
    secret: Sequence[str],
    recipients: Collection[str] = (),
) -> tuple[ArgChange, ...]:
    """The arguments that differ, in the order they stand. `recipients` are pointers."""
    return tuple(
        ArgChange(
            name, _shown(then, name, secret), _shown(today, name, secret), pointer_to(name) in recipients
        )
        for name in dict.fromkeys([*then, *today])
        if _text(then, name) != _text(today, name)
    )


def _text(args: Mapping[str, JSON], name: str) -> bytes | None:
    """A value as it is compared: to Python 1 and true are equal, to a person and to policy they are not."""
    return canonicalize(args[name]) if name in args else None


def _shown(args: Mapping[str, JSON], name: str, secret: Sequence[str]) -> str:
    if name not in args:
        return _ABSENT
    if is_hidden(secret, pointer_to(name)):
        return hidden_text(args[name])
    return canonicalize(args[name]).decode()
