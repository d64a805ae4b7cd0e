"""The rules of a travel company's support desk: refunds, credits, mail, campaigns, deploys and deletions.

Several agents, several groups of people, meters and facts: what a page of the queue has to show on an ordinary day.
The people are those of an identity provider; their ids are `northwind|name`.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.fakes.repository import Repository

ISSUER = "https://id.northwind.example"
PEOPLE = {
    "maya": "Maya Okafor",
    "tomas": "Tomás Reyes",
    "ingrid": "Ingrid Vik",
    "jonas": "Jonas Lindqvist",
    "wen": "Wen Li",
}
GROUPS = {
    "finance": ("Finance", ("maya", "tomas", "ingrid")),
    "release-captains": ("Release captains", ("maya", "tomas", "wen")),
    "marketing-leads": ("Marketing leads", ("maya", "wen")),
    "data-owners": ("Data owners", ("wen", "jonas")),
    "admin": ("Administrators", ("maya", "ingrid")),
    "unseen": ("Whoever looks at what policy cannot weigh", ("ingrid",)),
}

RULES = {
    "refunds.cedar": """// Refunds: the desk's own limit, then finance, and a cap for the day.

@id("support-may-refund")
@title("Support may refund")
permit (principal in Role::"support-agent", action == Action::"refund", resource);

@id("refund-needs-finance")
@title("Refunds above 50.00 need finance")
@doc("A refund above 50.00 leaves the desk's own limit, so one person of finance looks at it.")
@approval("finance")
@answer_within("4h")
@remind("1h")
forbid (principal, action == Action::"refund", resource)
when { context.input.amount_cents > 5000 };

@id("refunds-of-a-day")
@title("Refunds above 5,000.00 a day")
@doc("This agent has given back its 5,000.00 for today. Leave the rest to a colleague.")
forbid (principal, action == Action::"refund", resource)
when { context.history.refunded_today + context.input.amount_cents > 500000 };

@id("goodwill-needs-a-glance")
@title("Credits above 5.00 need a glance")
@doc("Somebody of finance glances at credits above 5.00; those that are alike may be decided together.")
@approval("finance")
@answer_within("12h")
forbid (principal, action == Action::"credit", resource)
when { context.input.amount_cents > 500 };

@id("desk-may-credit")
@title("The desk may give credit")
permit (principal in Role::"support-agent", action == Action::"credit", resource);
""",
    "mail.cedar": """// Mail: one customer at their own address, many customers with two signatures.

@id("support-may-write")
@title("Support may write to customers")
permit (principal in Role::"support-agent", action == Action::"send_mail", resource);

@id("mail-only-to-the-customer")
@title("Mail goes to the customer's own address")
@doc("Mail about an account goes only to the address on that account. Send it there, or change the address first.")
forbid (principal, action == Action::"send_mail", resource)
unless { context.input.to == resource.email };

@id("marketing-may-write")
@title("Marketing may write to audiences")
permit (principal in Role::"marketing-agent", action == Action::"send_campaign", resource);

@id("mass-mail-needs-two")
@title("Mail to many needs two people")
@doc("Mail to more than 500 people cannot be called back, so two marketing leads sign it.")
@approval("marketing-leads")
@quorum("2")
@answer_within("2h")
forbid (principal, action == Action::"send_campaign", resource)
when { resource.people > 500 };
""",
    "operations.cedar": """// Operations: production and data.

@id("ops-may-deploy")
@title("Operations agents may deploy")
@unseen("changes")
permit (principal in Role::"operations-agent", action == Action::"deploy", resource);

@id("ops-may-delete")
@title("Operations agents may delete and roll back")
permit (
    principal in Role::"operations-agent",
    action in [Action::"delete_rows", Action::"rollback"],
    resource
);

@id("production-needs-two")
@title("Production needs two release captains")
@doc("Two release captains sign what goes to production.")
@approval("release-captains")
@quorum("2")
@answer_within("1h")
@valid_for("30m")
forbid (principal, action == Action::"deploy", resource)
when { context.input.environment == "production" };

@id("deletion-needs-the-owner")
@title("Deleting rows needs the data's owner")
@doc("Rows that are gone are gone. The owner of the data says why that is right.")
@approval("data-owners")
@escalate("admin")
@answer_within("6h")
@reason
forbid (principal, action == Action::"delete_rows", resource)
when { context.input.rows > 100 };

@id("keys-need-a-passkey")
@title("A new signing key needs a passkey")
@doc("Whoever holds the key signs for the company.")
@approval("release-captains|admin")
@step_up("passkey")
forbid (principal, action == Action::"rotate_key", resource);

@id("ops-may-rotate")
@title("Operations agents may rotate keys")
permit (principal in Role::"operations-agent", action == Action::"rotate_key", resource);
""",
    "people.cedar": """// What people may do here beside voting.

@id("admins-start-again")
@title("Administrators start again")
permit (principal in Group::"admin", action == Action::"start_again", resource);

@id("an-admin-breaks-the-glass")
@title("Administrators may break the glass")
@doc("In an emergency an administrator lets a deploy go; a second one looks at it afterwards.")
permit (principal in Group::"admin", action == Action::"break_glass_alone", resource)
when { resource.tool == "deploy" };
""",
}

_REFUND = {"payment_id": "p", "account": "cus_1042", "customer": "Dana", "card": "4242", "amount_cents": 5_000,
           "currency": "USD", "reason_code": "cancelled", "memo": "m"}  # fmt: skip
_DEPLOY = {"service": "checkout-api", "version": "1", "environment": "production", "region": "eu-west-1",
           "traffic_percent": 100, "canary": False, "changes": []}  # fmt: skip
CASES: dict[str, Any] = {
    "agents": {
        "desk": {"name": "refund-desk", "roles": ["support-agent"]},
        "ops": {"name": "ship-bot", "roles": ["operations-agent"]},
        "intern": {"name": "intern", "roles": []},
    },
    "cases": [
        {"it": it, "agent": agent, "tool": tool, "args": args, "expect": expect} | why
        for it, agent, tool, args, expect, why in (
            ("a refund at the desk's limit goes", "desk", "refund", _REFUND, "release", {}),
            ("one cent more asks finance", "desk", "refund", _REFUND | {"amount_cents": 5_001}, "review",
             {"gates": ["refund-needs-finance"]}),
            ("nobody else refunds", "intern", "refund", _REFUND, "deny", {"reasons": ["no_permit"]}),
            ("production asks two", "ops", "deploy", _DEPLOY, "review", {"gates": ["production-needs-two"]}),
        )
    ],
}  # fmt: skip

METERS = """[meters.refunded_today]
doc = "What this agent gives back in a day, in cents."
sum = "/amount_cents"
of = ["refund"]
per = "principal"
window = "day"

[meters.refunds_to_customer]
doc = "How many refunds one customer got within 30 days."
count = true
of = ["refund"]
per = "resource"
window = "30d"
"""

FACTS: dict[str, dict[str, dict[str, Any]]] = {
    "Account": {
        "cus_1042": {"email": "dana@example.com", "customer_since": "March 2019", "open_disputes": 0},
        "cus_1077": {"email": "ravi@example.com", "customer_since": "June 2024", "open_disputes": 0},
        "cus_1101": {"email": "amara@example.com", "customer_since": "May 2022", "open_disputes": 1},
        "cus_1130": {"email": "chen@example.com", "customer_since": "January 2021", "open_disputes": 0},
        "cus_1131": {"email": "lucia@example.com", "customer_since": "August 2023", "open_disputes": 0},
        "cus_1132": {"email": "omar@example.com", "customer_since": "October 2020", "open_disputes": 0},
    },
    "Audience": {"all-customers": {"people": 48_210}, "newsletter-test": {"people": 212}},
    "Service": {"checkout-api": {"tier": "critical", "open_incidents": 0}},
    "Table": {"archive.tickets": {"personal_data": True}},
    "Key": {"receipts-2": {"signs": "receipts"}},
}


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
    for file, rules in RULES.items():
        kept.write(file, rules)
    for tool in TOOLS:
        kept.write(f"tools/{tool['tool']}.json", json.dumps(tool, indent=2))
    kept.write("cases/desk.yaml", json.dumps(CASES))
    kept.write("groups.toml", _groups()).write("meters.toml", METERS).write("facts.toml", _facts())
    for entity, facts in FACTS.items():
        kept.write(f"facts/{entity.lower()}.json", json.dumps(facts))
    kept.commit("the desk's rules")
    return folder


def _groups() -> str:
    people = [f'[people.{name}]\nid = "{person(name)}"\nname = "{full}"\n' for name, full in PEOPLE.items()]
    groups = [
        f'[groups.{name}]\ntitle = "{title}"\nmembers = {json.dumps(members)}\n'
        for name, (title, members) in GROUPS.items()
    ]
    return "\n".join(people + groups)


def _facts() -> str:
    cedar = {str: "String", int: "Long", bool: "Bool"}
    lines = []
    for entity, facts in FACTS.items():
        first = next(iter(facts.values()))
        lines.append(f"[entities.{entity}.attributes]")
        lines += [f'{name} = "{cedar[type(value)]}"' for name, value in first.items()]
    for entity in FACTS:
        lines += [
            "[[source]]", f'name = "{entity.lower()}"', 'kind = "file"',
            f'file = "facts/{entity.lower()}.json"', f'entity = "{entity}"',
        ]  # fmt: skip
    return "\n".join(lines) + "\n"
