"""A policies page with everything on it: a bundle in force, one that does not load, one in shadow, an effect tried."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

from policy_service.queries.policies import (
    ActiveBundleInfo,
    BundleEvent,
    EvaluatedCall,
    PoliciesPage,
    PolicyRow,
    ShadowDifferenceLine,
    ShadowInfo,
    ToolRow,
)
from policy_service.queries.review_models import FactLine
from tests.fakes.reviews import NOW, REFUND_GATE, hexed

INGRID = "Ingrid Vik <ingrid@example.com>"
COMMIT = hexed("in force")[:40]

_FILE = "refunds.cedar"
_MAY = '@id("support-may-refund")\npermit (principal, action, resource);'
_NEVER = '@id("never-to-closed-accounts")\nforbid (principal, action, resource)\nwhen { resource.closed };'
_WHY = "Closed accounts get nothing back."
_ID = "refund-needs-finance"
GATE = PolicyRow(_ID, "Refunds above 50", "gate", "Finance", _FILE, 9, REFUND_GATE, "", 88, 17)
ROWS = (
    PolicyRow("support-may-refund", "support-may-refund", "permit", "", _FILE, 3, _MAY, "", 1_204, 12),
    GATE,
    replace(
        GATE, policy_id="large-refund-needs-two", asks="2 of Finance, with a passkey", line=14, decided=4
    ),
    PolicyRow(
        "never-to-closed-accounts", "never-to-closed-accounts", "forbid", "", _FILE, 20, _NEVER, _WHY, 0, 0
    ),
)


def page(**changes: Any) -> PoliciesPage:
    """The page; a test says what differs."""
    week, bad = NOW - timedelta(days=7), hexed("bad")[:40]
    counts = {"tools": 2, "policies": len(ROWS), "gates": 2, "cases": 214}
    nothing_wrong: dict[str, Any] = {"head": None, "why": None, "problems": (), "failed_at": None}
    force = ActiveBundleInfo(
        **counts,
        **nothing_wrong,
        digest=hexed("bundle"),
        commit=COMMIT,
        origin="git.example/acme/policies main",
        author=INGRID,
        subject="Ask finance from $50, not $75",
        written_at=week,
        since=week,
        cases_say="cases, all pass",
        warnings=("refunds.cedar:14: asks for 2 of finance, which has 1; it can never be met",),
    )
    tools = (
        ToolRow("refund_payment", "Refund a payment", "medium", hexed("refund"), ()),
        ToolRow("send_campaign", "Send a campaign", "high", hexed("mail"), ("attachments", "to")),
    )
    refusal = "does not load: refunds.cedar:12"
    events = (
        BundleEvent(week, "activated", COMMIT, "", INGRID, "Ask finance from $50, not $75"),
        BundleEvent(NOW - timedelta(days=8), "refused", bad, refusal, INGRID, "Give reviewers four hours"),
    )
    return replace(PoliciesPage(force, ROWS, tools, 1_296, True, shadow(), events, None), **changes)


def shadow(**changes: Any) -> ShadowInfo:
    """A candidate that would let more go."""
    at, asked = NOW - timedelta(hours=2), "review by 1 of finance"
    because = ("goodwill-may-go",)
    row = ShadowDifferenceLine("refund_payment", "desk-agent", at, "looser", asked, "release", because)
    stricter = replace(row, way="stricter", now="release", then="deny", because=("no-large-attachments",))
    other = replace(row, way="other", then="review by 1 of legal", because=("legal-looks",))
    counts = {"compared": 1_913, "looser": 1, "stricter": 1, "other": 1, "failed": 0}
    since, where = NOW - timedelta(hours=26), {"origin": "/srv/policies-next", "commit": hexed("next")[:40]}
    found = ShadowInfo(since=since, problems=(), rows=(row, stricter, other), **where, **counts)  # type: ignore[arg-type]
    return replace(found, **changes)


def tried(**changes: Any) -> EvaluatedCall:
    """A refund that finance is asked about."""
    account = FactLine("Account state", "open", "accounts", timedelta(minutes=2))
    none: dict[str, Any] = {"reasons": (), "advice": ()}
    asks = ("1 of Finance",)
    found = EvaluatedCall("review", policies=(GATE,), asks=asks, unseen=("items",), facts=(account,), **none)
    return replace(found, **changes)
