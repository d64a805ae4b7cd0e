"""One line in the log for one thing that happened, in the unit of work that made it happen.

No audit row, no change: a line that cannot be written undoes its unit. A line is canonical JSON, so no actor
and no reason can forge another line. It is written without an index; the sequencer gives it one after the
commit. Lines hold ids, digests and codes; a person's own words and an agent's args stay in their tables.
"""

from __future__ import annotations

import itertools
import secrets
from collections.abc import Mapping
from typing import Any

from sqlalchemy import BigInteger, String, bindparam, cast, func, insert

from countersign.contract import canonicalize
from policy_service.storage.core import table, write
from policy_service.storage.plumbing import AuditRow
from policy_service.storage.unit import Line, Tx

_audit = table(AuditRow)
_counter = itertools.count()
_MICROSECONDS = 1_000_000


def append(
    tx: Tx,
    kind: str,
    *,
    actor: str,
    body: Mapping[str, Any],
    txn: str | None = None,
    effect_id: str | None = None,
    rev: int | None = None,
    agent: str | None = None,
) -> None:
    """Write a line. ``agent`` is whose it is, for those who search.

    Raises:
        AdmissionError: the body is no plain JSON; the unit must not go on.
    """
    line = {
        "kind": kind, "actor": actor, "txn": txn, "effect_id": effect_id, "rev": rev,
        "agent": agent, "body": canonicalize(dict(body)), "at": tx.now,
    }  # fmt: skip
    tx.lines.append(Line(kind, txn, effect_id, rev, tx.now, body))
    rest = f"{next(_counter) & 0xFFFF_FFFF:08x}{secrets.token_hex(4)}"
    if tx.conn.dialect.name == "sqlite":
        written = f"{int(tx.now.timestamp() * _MICROSECONDS):014x}"
        write(tx.conn, _INSERT, line | {"audit_id": written + rest})
    else:
        write(tx.conn, _INSERT_BY_SERVER_TIME, line | {"rest": rest})


# An id is microseconds, a count, then chance: 30 hex digits that sort as they were written. On PostgreSQL the
# time is the server's at this very statement, after every row lock the unit has waited for: of two units where
# one depends on the other, the later line sorts later whichever replica wrote it.
_SERVER_TIME = cast(func.extract("epoch", func.clock_timestamp()) * _MICROSECONDS, BigInteger)
_INSERT = insert(_audit)
_INSERT_BY_SERVER_TIME = _INSERT.values(
    audit_id=func.lpad(func.to_hex(_SERVER_TIME), 14, "0").concat(bindparam("rest", type_=String))
)
