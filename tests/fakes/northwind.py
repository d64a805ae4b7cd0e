"""The rules of a travel company's support desk: refunds, credits, mail, campaigns, deploys and deletions.

Several agents, several groups of people, meters and facts: what a page of the queue has to show on an ordinary day.
The people are those of an identity provider; their ids are `northwind|name`.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from tests.fakes.repository import Repository

ISSUER = "https://id.northwind.example"
_NAMES = ("Maya Okafor", "Tomás Reyes", "Ingrid Vik", "Jonas Lindqvist", "Wen Li")
PEOPLE = dict(zip(("maya", "tomas", "ingrid", "jonas", "wen"), _NAMES, strict=True))
BUNDLE = Path(__file__).with_name("northwind_bundle")  # but for its tools


def text(most: int = 64, **more: Any) -> dict[str, Any]:
    """The schema of a text."""
    return {"type": "string", "minLength": 1, "maxLength": most, **more}


def _tool(name: str, title: str, of: str, sentence: str, args: dict[str, Any], **more: Any) -> dict[str, Any]:
    kind, _, pointer = of.partition("/")
    schema = {"type": "object", "additionalProperties": False, "required": list(args), "properties": args}
    resource = {"type": kind, "id": f"/{pointer}"}
    return {"tool": name, "title": title, "args": schema, "resource": resource, "sentence": sentence, **more}


_CENTS = {"type": "integer", "minimum": 1, "maximum": 100_000_000}
_MONEY = [{"amount": "/amount_cents", "currency": "/currency"}]
_CURRENCY = text(enum=["USD", "EUR", "GBP"])
_CUSTOMER = {"account": text(), "customer": text(), "amount_cents": _CENTS, "currency": _CURRENCY}

TOOLS = [
    _tool(
        "refund", "Refund a payment", "Account/account",
        "Refund {amount_cents} to {customer}, card ending {card}",
        {"payment_id": text(), **_CUSTOMER, "card": text(4),
         "reason_code": text(enum=["service_failure", "late_checkout", "cancelled", "billing_error"]),
         "memo": text(5_000)},
        money=_MONEY, recipients=["/account"], risk="high", groups=["money"], timeout_seconds=30,
    ),
    _tool(
        "credit", "Give a customer credit", "Account/account", "Credit {amount_cents} to {customer} for {cause}",
        {**_CUSTOMER, "cause": text(enum=["parking", "late breakfast", "broken lift"])},
        money=_MONEY, recipients=["/account"], risk="low", groups=["money"],
    ),
    _tool(
        "send_mail", "Write to a customer", "Account/account", "Write “{subject}” to {to}",
        {"account": text(), "to": text(254), "subject": text(200), "body": text(20_000)},
        recipients=["/to"], risk="low",
    ),
    _tool(
        "send_campaign", "Write to many", "Audience/audience", "E-mail {audience} from {from}",
        {"from": text(254), "audience": text(), "subject": text(200), "preheader": text(400),
         "body_html": text(50_000), "send_at": text(20)},
        recipients=["/from"], risk="high",
    ),
    _tool(
        "deploy", "Deploy a service", "Service/service", "Deploy {service} {version} to {environment}, {region}",
        {"service": text(), "version": text(20), "environment": text(enum=["staging", "production"]),
         "region": text(20), "traffic_percent": {"type": "integer", "minimum": 0, "maximum": 100},
         "canary": {"type": "boolean"}, "changes": {"type": "array", "items": text(200)}},
        risk="high", timeout_seconds=300,
        compensation={"tool": "rollback", "map": {"service": "args:/service", "release": "result:/release"}},
    ),
    _tool("rollback", "Roll back a service", "Service/service", "Roll {service} back from {release}",
          {"service": text(), "release": text(64)}, risk="high"),
    _tool(
        "delete_rows", "Delete rows", "Table/table", "Delete {rows} rows from {table}, older than {older_than}",
        {"table": text(), "rows": {"type": "integer", "minimum": 1}, "older_than": text(20)}, risk="medium",
    ),
    _tool("rotate_key", "Rotate a signing key", "Key/key", "Replace the signing key {key} by {successor}",
          {"key": text(), "successor": text()}, risk="high"),
]  # fmt: skip


def person(name: str) -> str:
    """How policies and votes name somebody."""
    return f"{ISSUER}|{name}"


def bundle(folder: Path) -> Path:
    """The folder of this bundle, committed: pages and tokens name the commit."""
    kept = Repository(folder)
    shutil.copytree(BUNDLE, folder, dirs_exist_ok=True)
    for tool in TOOLS:
        kept.write(f"tools/{tool['tool']}.json", json.dumps(tool, indent=2))
    kept.commit("the desk's rules")
    return folder
