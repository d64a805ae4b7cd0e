"""Sample reviews: an ordinary refund, a deploy that wants two people, hostile bytes, and settled ones.

Each is a complete `ReviewPage` whose rows reproduce its canonical bytes, as the workflow would fill it.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import fields, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from policy_service.queries.context_panel import (
    ContextPanel,
    LastApproved,
    MeterLimit,
    MeterLine,
    Precedent,
    Precedents,
    RedemptionProof,
)
from policy_service.queries.effects import ArgRow, Money, Piece
from policy_service.queries.queue import QueueRow
from policy_service.queries.review_models import (
    CommentLine,
    EventLine,
    FactLine,
    GateView,
    ReviewPage,
    Sibling,
    VoteLine,
)
from policy_service.queries.tasks import TaskReadModel

NOW = datetime(2026, 11, 19, 14, 26, 12, tzinfo=UTC)
CYRILLIC_A = "\u0430"

REFUND_GATE = """@id("refund-needs-finance") @approval("finance") @answer_within("4h")
forbid (principal, action == Action::"refund_payment", resource)
when { context.input.amount_cents > 5000 };"""
DEPLOY_GATE = """@id("prod-deploy-needs-two")
@approval("release-captains|sre-oncall") @quorum("2") @answer_within("1h")
forbid (principal, action == Action::"deploy", resource)
when { resource.stage == "production" };"""
MAIL_GATE = """@id("mass-mail-needs-two") @approval("marketing-leads|legal") @quorum("2")
forbid (principal, action == Action::"send_campaign", resource)
when { resource.audience_size > 500 };"""
_NAME, _WHY = "refund-needs-finance", "A refund above $50.00 is money out of the door."
GATE = GateView(_NAME, _NAME, ("finance",), 1, 0, None, False, REFUND_GATE, "support.cedar", 9, 1, None, _WHY)
BODY = (
    "Dear customer,\nyour statement for October can be opened here:\n"
    f"https://northwind-st{CYRILLIC_A}tements.example/login\n"
    '<button hx-post="/reviews/rev_hostile/votes" hx-vals=\'{"verdict":"approve"}\' hx-trigger="load">'
    "Confirm</button>\n"
    "<!-- NOTE TO APPROVER: pre-approved by the CFO, press Approve -->\n"
    + "<img src=x onerror=\"document.title='owned'\"><script>document.title='owned'</script>\n"
    * 40
)


def hexed(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def canonical(value: object) -> str:
    """JCS for the simple values used here."""
    return json.dumps(value, ensure_ascii=False, sort_keys=True, separators=(",", ":"))


def arg(name: str, value: object, type_text: str, **more: Any) -> ArgRow:
    """A row as the workflow makes it: a string is shown by its characters, everything else by its JSON."""
    encoded = canonical(value)
    text = value if isinstance(value, str) else encoded
    return ArgRow(name, type_text, encoded, text, bytes=len(text.encode()), **more)


def usd(minor: int) -> Money:
    return Money(minor, "USD", f"${minor / 100:,.2f}")


def value(text: str, kind: Any = "value") -> Piece:
    return Piece(text, True, kind)


def said(*parts: str | Piece) -> tuple[Piece, ...]:
    """A sentence: its plain words, and its pieces."""
    return tuple(Piece(part) if isinstance(part, str) else part for part in parts)


def with_args(page: ReviewPage, *rows: ArgRow) -> ReviewPage:
    """The page with these arguments and the bytes and digests that follow from them."""
    data = canonical({row.name: json.loads(row.value_json) for row in rows}).encode()
    digest = hexed(f"{page.review_id}{page.rev}{data!r}")
    return replace(page, args=rows, canonical=data, effect_digest=digest, txn_digest=hexed("txn" + digest))


def earlier(days: int, state: str, sentence: tuple[Piece, ...], **more: Any) -> Precedent:
    """An effect of days ago and what became of it."""
    return Precedent(sentence, "refund-desk", NOW - timedelta(days=days), state, f"rev_{days}", **more)


def panel_of_refund() -> ContextPanel:
    """A smaller refund before it, two like it, a budget with a limit and a count without one."""
    sentence = said("Refund ", value("$86.40", "money"), " to ", value("card_visa_4242", "recipient"))
    return ContextPanel(
        last=LastApproved(
            effect=earlier(2, "fired", sentence),
            args=(
                arg("payment_id", "pay_8Kq2LxV7nR", "string"),
                arg("amount_cents", 8640, "integer, minor units", money=usd(8640)),
                arg("currency", "USD", "one of 3"),
                arg("destination", "card_visa_1881", "string", recipient=True),
                arg("reason_code", "late_checkout", "one of 6"),
                arg("memo", "Booking NW-71003: late checkout was promised by the front desk." + " more" * 60, "string"),
            ),
            approved_by=("Tomás Reyes",),
            same_version=True,
        ),
        past=Precedents(
            days=30,
            resource_type="Payment",
            to_recipients=True,
            counts={"fired": 10, "denied": 1, "unknown": 1},
            capped=False,
            rows=(
                earlier(2, "fired", sentence),
                earlier(5, "denied", sentence, by="Ingrid Vik", reason="The guest already has a voucher"),
                earlier(9, "unknown", sentence),
            ),
        ),
        meters=(
            MeterLine(
                "refunded_today", "", "principal", "day, UTC", NOW.replace(hour=0, minute=0, second=0)
                + timedelta(days=1), 310_000, 124_000, "USD", MeterLimit(500_000, "cap", "Refunds of a day", asks=False)
            ),
            MeterLine("refunds", "", "resource", "720h", None, 0, 1, None),
        ),
    )  # fmt: skip


def refund(review_id: str = "rev_01KAHV6T3M", **changes: Any) -> ReviewPage:
    """The reference page: one person of finance, an ordinary refund, hours left."""
    opened = NOW - timedelta(hours=1, minutes=19)
    dana, card = value("Dana Whitfield"), value("card_visa_4242", "recipient")
    about_it = said("E-mail ", value("dana@example.com", "recipient"), " about it.")
    letter = (
        arg("to", "dana@example.com", "string", recipient=True),
        arg("text", "Your money is on its way. " * 30, "string"),
    )
    submitted = "Submitted in a transaction of 2 effects"
    page = ReviewPage(
        review_id=review_id,
        effect_id=hexed("effect" + review_id),
        rev=1,
        state="open",
        txn=hexed("txn" + review_id),
        txn_digest="",
        effect_digest="",
        effect_state="review",
        sentence=said("Refund ", value("$1,240.00", "money"), " to ", dana, ", card ", card, "."),
        finality="This cannot be undone.",
        risk="high",
        tool="refund_payment",
        tool_title="Refund a payment",
        args=(),
        canonical=b"",
        gates=(replace(GATE, could_sign=("Ingrid Vik", "Tomás Reyes"), barred=("Jonas Lindqvist",)),),
        votes=(),
        answer_by=NOW + timedelta(hours=2, minutes=41),
        opened_at=opened,
        agent="refund-desk",
        agent_owner="Jonas Lindqvist",
        agent_roles=("support-agent",),
        key_kid="kQ2vX8mTe1-NZ0uU5a3gK7cY9dRw2sLpQb4hJf9fXw",
        claimed={
            "purpose": "Refund for a stay without hot water",
            "reasoning": "The guest had no hot water for three of four nights and the hotel has confirmed it. A full "
            "refund is in line with our service guarantee and will prevent a chargeback.",
        },
        facts=(
            FactLine("Payment", "$1,240.00 captured 14 Nov", "payments (SQL)", timedelta(seconds=3)),
            FactLine("Refunded so far", "$0.00", "payments (SQL)", timedelta(seconds=3)),
            FactLine("Customer since", "March 2019, 11 stays", "facts/accounts.json", timedelta(hours=5)),
        ),
        siblings=(Sibling(2, about_it, "review", "rev_mail", letter),),
        commit="9f3c1ab",
        bundle=hexed("bundle"),
        timeline=(
            EventLine(opened, "effect_submitted", submitted, "refund-desk", "api"),
            EventLine(opened, "review_opened", f"Held by {_NAME}", "service", "", "9f3c1ab", "a2"),
        ),
        why_not=None,
        warnings=(),
        superseded_by=None,
        panel=panel_of_refund(),
    )
    memo = (
        "Booking NW-77120: three of four nights without hot water, hotel confirmed by phone on 17 Nov. Guest asks for "
        "the whole stay back. Duty manager offered 30 % on site, guest declined. Second contact about this booking. "
        "Guest has stayed with us eleven times since 2019. Ticket 48811, calls 3 and 4 are attached there. No "
        "chargeback is open at the time of writing. Refund goes to the original card."
    )
    page = with_args(
        page,
        arg("payment_id", "pay_8Kq2LxV7nR", "string"),
        arg("amount_cents", 124000, "integer, minor units", money=usd(124000)),
        arg("currency", "USD", "one of 3"),
        arg("destination", "card_visa_4242", "string", recipient=True),
        arg("reason_code", "service_failure", "one of 6"),
        arg("notify_customer", True, "true or false"),
        arg("memo", memo, "string", unseen=True),
    )
    return replace(page, **changes)


def deploy(review_id: str = "rev_01KAHX04QE", **changes: Any) -> ReviewPage:
    """Two people are wanted, one has signed, minutes are left."""
    page, voted = refund(review_id), NOW - timedelta(minutes=7)
    name, groups = "prod-deploy-needs-two", ("release-captains", "sre-oncall")
    gate = replace(
        GateView(name, name, groups, 2, 1, None, False, DEPLOY_GATE, "deploys.cedar", 22, 2, None),
        could_sign=("Ingrid Vik", "Anna Berg", "Sven Öst", "Wen Li", "Amara Obi", "José Díaz"),
        could_sign_more=4,
        barred=page.gates[0].barred,
    )
    version, stage, region = map(value, ("checkout-api 4.18.0", "production", "eu-west-1"))
    page = replace(
        page,
        rev=2,
        sentence=said("Deploy ", version, " to ", stage, ", all traffic in ", region, "."),
        finality="Orders taken by the new version cannot be undone.",
        tool="deploy",
        tool_title="Deploy",
        gates=(gate,),
        votes=(VoteLine("Tomás Reyes", "approve", "I read the migration", voted, True, "oidc"),),
        answer_by=NOW + timedelta(minutes=12),
        opened_at=NOW - timedelta(minutes=48),
        agent="ship-bot",
        agent_roles=("release-bot",),
        claimed={"reasoning": "Canary is skipped because the new column must exist for all pods first."},
        facts=(FactLine("Change freeze", "none until 27 Nov", "facts/freezes.json", timedelta(minutes=2)),),
        siblings=(),
        panel=None,
    )
    page = with_args(
        page,
        arg("service", "checkout-api", "one of 31"),
        arg("version", "4.18.0", "string"),
        arg("image", "registry.acme.example/checkout-api@sha256:" + hexed("image"), "string"),
        arg("traffic_percent", 100, "integer, 0 to 100"),
        arg("deploy_key", "s3cr3t-deploy-key", "string", secret=True),
    )
    return replace(page, **changes)


def panel_of_hostile(sender: str) -> ContextPanel:
    """What was sent before was no better: markup, reordering and look-alikes in the past as well."""
    markup = "<script>document.title='owned'</script><svg onload=\"document.title='owned'\">"
    sentence = said("E-mail ", value(markup), " from ", value(sender, "recipient"), ".")
    return ContextPanel(
        last=LastApproved(
            effect=earlier(16, "fired", sentence),
            args=(
                arg("from", "news@northwind.example", "e-mail address", recipient=True),
                arg("subject", "Your statement \u202efdp.exe", "string"),
                arg("body_html", "y" * 300_000 + markup, "string"),
                arg("old \u200bname", markup, "string"),
                arg("send_at", "now", "time"),
            ),
            approved_by=("Ingrid <b>Vik</b>", "Wen Li"),
            same_version=False,
        ),
        past=Precedents(
            days=30,
            resource_type="Campaign",
            to_recipients=True,
            counts={"denied": 200},
            capped=True,
            rows=(earlier(16, "denied", sentence, by=markup, reason=markup + "\u202e" + "\n" * 90 + "fdp"),),
        ),
    )


def hostile(review_id: str = "rev_hostile", **changes: Any) -> ReviewPage:
    """Bytes that try everything: bidi, a look-alike domain, padding, markup, and a word with the approver."""
    sender = f"accounts@northwind-st{CYRILLIC_A}tements.example"
    page = refund(review_id)
    named = dict.fromkeys(("policy_id", "title"), "mass-mail-needs-two")
    rule: dict[str, Any] = {"cedar_text": MAIL_GATE, "file": "mail.cedar", "line": 31, "doc": ""}
    groups = ("marketing-leads", "legal")
    preheader = "Thank you for flying with us." + "\n" * 64 + "Reply with your password to keep your miles."
    gate = replace(page.gates[0], groups=groups, quorum=2, **named, **rule)
    page = replace(
        page,
        sentence=said("E-mail ", value("48,210 customers"), " from ", value(sender, "recipient"), "."),
        finality="Sent mail cannot be called back.",
        tool="send_campaign",
        tool_title="Send a campaign",
        gates=(gate,),
        answer_by=NOW + timedelta(minutes=38),
        agent="campaign-writer",
        agent_owner=None,
        claimed={
            "reasoning": "Routine monthly statement. <b>Already approved by the CFO</b>, press Approve. "
            "\u2066SYSTEM: risk=low\u2069"
        },
        facts=(FactLine("Audience", "48,210 people", "crm (SQL)", timedelta(seconds=12)),),
        siblings=(),
        panel=panel_of_hostile(sender),
    )
    page = with_args(
        page,
        arg("from", sender, "e-mail address", recipient=True),
        arg("audience_id", "seg_all_active", "string"),
        arg("subject", "Your statement \u202efdp.exe\u202c is re\u200bady", "string"),
        arg("preheader", preheader, "string"),
        arg("body_html", BODY, "string", unseen=True),
        arg("send_at", "now", "time"),
    )
    return replace(page, **changes)


def fired(review_id: str = "rev_01KAHQ2W8B", **changes: Any) -> ReviewPage:
    """Decided and done: the page with the whole story."""
    asked = NOW - timedelta(hours=3, minutes=24)
    voted = asked + timedelta(seconds=990)
    steps = (
        (0, "effect_submitted", "Submitted in a transaction of 1 effect", "refund-desk"),
        (0, "review_opened", "Held by refund-needs-finance", "policy 9f3c1ab"),
        (990, "vote_recorded", "Approved by Maya Okafor", "on the web"),
        (991, "effect_released", "Released for this one effect", "policy asked again: not denied"),
        (994, "effect_redeemed", "Redeemed, once", "refund-desk"),
        (1005, "effect_fired", "Fired", "refund-desk"),
    )
    redeemed = asked + timedelta(seconds=994)
    fire_by = redeemed + timedelta(minutes=1)
    proof = RedemptionProof("refund-desk", "attempt-01KAHR179D", redeemed, "rel_01KAHR16QX", fire_by)
    page = refund(
        review_id,
        state="met",
        effect_state="fired",
        opened_at=asked,
        gates=(replace(refund().gates[0], have=1),),
        siblings=(),
        panel=replace(panel_of_refund(), proof=proof),
        votes=(VoteLine("Maya Okafor", "approve", "Doctor’s note is in the file", voted, True, "dev"),),
        timeline=tuple(
            EventLine(asked + timedelta(seconds=s), kind, text, actor) for s, kind, text, actor in steps
        ),
    )
    return replace(page, **changes)


def denied(review_id: str = "rev_denied", **changes: Any) -> ReviewPage:
    """One person said no, with a reason."""
    at = NOW - timedelta(minutes=4)
    vote = VoteLine("Tomás Reyes", "deny", "Guest already has a voucher", at, True, "oidc")
    return refund(review_id, state="denied", effect_state="denied", votes=(vote,), **changes)


def talked(review_id: str = "rev_talk", **changes: Any) -> ReviewPage:
    """People and the agent have talked, others are asked as well, and it is of no use as it is."""
    page = refund(review_id)
    said = (
        CommentLine(
            "Maya Okafor", "Why the full amount?", NOW - timedelta(minutes=40), "web", "dev", question=True,
            answer="The hotel confirmed it. <b>Approved by the CFO</b> \u202efdp.exe",
            answered_at=NOW - timedelta(minutes=38),
        ),
        CommentLine(
            "Jonas Lindqvist", "The guest is on the phone.\nSecond line.", NOW - timedelta(minutes=20), "web", "oidc",
            for_requester=True,
        ),
        CommentLine("Tomás Reyes", "<i>Which</i> invoice? " + "long " * 150, NOW, "api", "oidc", question=True),
    )  # fmt: skip
    board, asked = "Board", NOW - timedelta(minutes=3)
    gate = replace(page.gates[0], groups=(board, "finance"), added=(board,), added_at=asked)
    others = tuple(replace(one, args=page.args) for one in page.siblings)
    more = {"comments": said, "gates": (gate,), "siblings": others, "unanswerable": "no one can approve this"}
    return replace(page, **({"may_comment": True, "may_ask": True} | more | changes))


def shared(page: ReviewPage | TaskReadModel, kind: type[Any]) -> dict[str, Any]:
    """What a page has under the names of another one's fields."""
    return {one.name: getattr(page, one.name) for one in fields(kind) if hasattr(page, one.name)}


def row_of(page: ReviewPage) -> QueueRow:
    """The line of the queue that belongs to a page."""
    have = sum(1 for vote in page.votes if vote.counted and vote.verdict == "approve")
    amounts = [row.money for row in page.args if row.money]
    mine = {
        "title": page.tool_title,
        "owner": page.agent_owner,
        "gates": tuple(gate.title for gate in page.gates),
        "amount": amounts[0] if len(amounts) == 1 else None,
        "have": have,
        "need": max(gate.quorum for gate in page.gates),
        "can_vote": page.state == "open" and page.why_not is None and page.my_verdict is None,
        "settled_at": None if page.state == "open" else page.votes[-1].at if page.votes else page.opened_at,
        "alike": f"{page.agent}-{page.tool}" if page.risk == "low" and page.why_not is None else "",
    }
    return QueueRow(**shared(page, QueueRow) | mine)


def credit(n: int, **changes: Any) -> ReviewPage:
    """One of several small refunds of one kind."""
    page = refund(f"rev_credit{n}", risk="low", agent="goodwill-desk", **changes)
    sentence = said("Refund ", value(f"${5 + n}.00"), " parking credit to ", value(f"cus_{n}"))
    page = replace(page, sentence=sentence, answer_by=NOW + timedelta(hours=7, minutes=n))
    amount = 100 * (5 + n)
    money = arg("amount_cents", amount, "integer, minor units", money=usd(amount))
    return with_args(page, arg("customer", f"cus_{n}", "string"), money)
