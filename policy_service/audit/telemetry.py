"""Metrics and traces of committed audit lines.

Every change writes its line in its own unit, so each is counted once and rolled-back ones never. Spans carry only the
listed members of a line. A vote or a redemption comes in a later request, often in another trace: its spans link to
the trace of the submission, which the audit log keeps (``trace`` in its line).
"""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping
from typing import Any, Final

from opentelemetry.trace import SpanContext
from sqlalchemy import select

from policy_service import metrics, tracing
from policy_service.storage.core import table
from policy_service.storage.system_tables import AuditRow
from policy_service.storage.types import id_created_at
from policy_service.storage.unit_of_work import AuditLine, Tx

_audit = table(AuditRow).c
_CACHE_SIZE: Final = 1_000
_SUBMITTED: Final = "transaction_submitted"

# Members of a line that a span or a webhook may carry. None is text of a caller or a person.
EXPORTED_MEMBERS: Final = frozenset(
    "outcome cause why from to kind decision_id policies gates bundle commit review_id vote_id verdict late channel "
    "state task_id task tool_digest args_digest effect_digest txn_digest comment_id proposal_id passkey_id".split()
)


class AuditTelemetry:
    """The commit listener of a running service."""

    def __init__(self, tools: Callable[[], Collection[str]]) -> None:
        """``tools``: the tool names of the active bundle; any other name comes from a caller and must not become a
        label.
        """
        self._tools = tools
        self._submitted: OrderedDict[str, SpanContext | None] = OrderedDict()

    def before_commit(self, tx: Tx) -> Mapping[str, SpanContext]:
        """The span contexts of these transactions' submissions; read only if tracing is on."""
        if not tracing.enabled():
            return {}
        txns = {line.txn for line in tx.lines if line.txn is not None}
        found = {txn: self._find(tx, txn) for txn in txns}
        return {txn: context for txn, context in found.items() if context is not None}

    def committed(self, lines: list[AuditLine], known: Any, seconds: float) -> None:
        """Count the lines, and trace them if tracing is on."""
        for line in lines:
            self._count(line)
        if not tracing.enabled():
            return
        for line in lines:
            linked = known.get(line.txn)
            tracing.record_span(
                f"countersign {line.kind}",
                _span_attributes(line),
                seconds,
                () if linked is None else (linked,),
            )

    def _find(self, tx: Tx, txn: str) -> SpanContext | None:
        if txn in self._submitted:
            return self._submitted[txn]
        if any(line.kind == _SUBMITTED and line.txn == txn for line in tx.lines):
            return None  # submitted in this unit; cached at the next look-up
        where = (_audit.txn == txn, _audit.kind == _SUBMITTED)
        newest = select(_audit.body).where(*where).order_by(_audit.audit_id.desc()).limit(1)
        body = tx.conn.execute(newest).scalar()
        found = None if body is None else tracing.parse_traceparent(json.loads(body).get("trace"))
        self._submitted[txn] = found
        while len(self._submitted) > _CACHE_SIZE:
            self._submitted.popitem(last=False)
        return found

    def _tool(self, name: str) -> str:
        return name if name in self._tools() else "(unknown)"

    def _count(self, line: AuditLine) -> None:
        kind, body = line.kind, line.body
        if kind == "decision_made":
            metrics.DECISIONS.labels(body["outcome"], body["cause"]).inc()
        elif kind == "live_decided":
            metrics.DECISIONS.labels(body["outcome"], "live").inc()
        elif kind == "effect_submitted":
            metrics.EFFECTS_SUBMITTED.labels(self._tool(body["tool"]), body["to"]).inc()
        elif kind.startswith("effect_"):
            metrics.EFFECT_TRANSITIONS.labels(body["to"]).inc()
        elif kind == "vote_recorded":
            metrics.VOTES.labels(body["verdict"], "yes" if body["late"] else "no").inc()
        elif kind == "break_glass_opened":
            metrics.BREAK_GLASS.labels(str(body["people"])).inc()
        elif kind == "review_settled":
            metrics.REVIEW_TIME.labels(body["state"]).observe(
                (line.at - id_created_at(body["review_id"])).total_seconds()
            )
        elif kind == "task_opened":
            metrics.TASKS_OPENED.labels(body["task"]).inc()


def _span_attributes(line: AuditLine) -> dict[str, Any]:
    names = {"txn": line.txn, "effect_id": line.effect_id, "rev": line.rev}
    members = names | {name: value for name, value in line.body.items() if name in EXPORTED_MEMBERS}
    return {f"countersign.{name}": value for name, value in members.items() if value is not None}
