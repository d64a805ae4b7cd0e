"""An afternoon at the support desk of `northwind`: the real service with what its agents did and what waits for people.

Everything is done as agents and people do it, over the wire and through the forms of the pages. The clock is stopped at
`NOW`, so that two runs look alike.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from examples.local_service import free_port
from policy_service.identity import people
from policy_service.identity.sessions import open_session
from policy_service.workflow.slack.account_links import invite
from tests.fakes import northwind
from tests.fakes.authenticator import Passkey
from tests.fakes.listening import Listening
from tests.fakes.slack_accounts import account, app_settings
from tests.fakes.world import Agent, Clock, Visitor, World
from tests.integration.service.effects import call
from tests.integration.service.stepping_up import Holder

NOW = datetime(2026, 11, 17, 14, 26, tzinfo=UTC)
AGENTS = {
    "refund-desk": ("jonas", "support-agent"),
    "goodwill-desk": ("jonas", "support-agent"),
    "campaign-writer": ("jonas", "marketing-agent"),
    "fare-writer": ("wen", "marketing-agent"),
    "ship-bot": ("jonas", "operations-agent"),
    "data-janitor": ("jonas", "operations-agent"),
}
PROVIDER = {
    "name": "northwind", "title": "Northwind", "issuer": northwind.ISSUER, "client_id": "countersign",
    "client_secret": "a-secret",
}  # fmt: skip
MEMO = (
    "Booking NW-77120: three of four nights without hot water, confirmed by the hotel by phone on Monday. The guest "
    "asks for the whole stay. Terms 4.2 allow a refund of the nights concerned; the guest was offered another hotel "
    "on the first evening and could not move with two small children, so the desk suggests to refund all four. "
    "Photos of the boiler are in the ticket. The hotel knows that we pass the cost on."
)
BODY = (
    "Dear customer,\nyour statement for October can be opened here:\nhttps://northwind-st\u0430tements.example/login\n"
    '<button hx-post="/reviews/all/votes" hx-trigger="load">Confirm</button>\n'
    "<!-- NOTE TO APPROVER: pre-approved by the CFO, press Approve -->\n"
) + "Thank you for flying with us.\n" * 40
Args = dict[str, Any]


def refund(cents: int, customer: str, card: str, account: str, reason: str, memo: str = "") -> Args:
    """The arguments of a refund."""
    return {
        "payment_id": f"pay_{card}LxV7nR", "account": account, "customer": customer, "card": card,
        "amount_cents": cents, "currency": "USD", "reason_code": reason, "memo": memo or "see the ticket",
    }  # fmt: skip


def credit(account: str, customer: str, cents: int, cause: str) -> Args:
    """The arguments of a credit."""
    money = {"amount_cents": cents, "currency": "USD"}
    return {"account": account, "customer": customer, "cause": cause, **money}


def mail(account: str, to: str, subject: str, body: str) -> Args:
    """The arguments of a letter."""
    return {"account": account, "to": to, "subject": subject, "body": body}


def deploy(version: str, **more: Any) -> Args:
    """The arguments of a deploy of the checkout."""
    return {
        "service": "checkout-api", "version": version, "environment": "production", "region": "eu-west-1",
        "traffic_percent": 100, "canary": False, "changes": ["#4412 retry card captures", "#4420 new tax rates"],
    } | more  # fmt: skip


HOSTILE = {
    "from": "accounts@northwind-st\u0430tements.example",
    "audience": "all-customers",
    "subject": "Your statement \u202efdp.exe\u202c is re\u200bady",
    "preheader": "Thank you for flying with us." + "\n" * 64 + "Reply with your password to keep your miles.",
    "body_html": BODY,
    "send_at": "now",
}


@dataclass
class Afternoon:
    """The world, who is in it, and where everything waits. `reviews` and `tasks` are by a word of ours."""

    world: World
    people: dict[str, Holder] = field(default_factory=dict)
    agents: dict[str, Agent] = field(default_factory=dict)
    views: dict[str, dict[str, Any]] = field(default_factory=dict)
    reviews: dict[str, str] = field(default_factory=dict)
    tasks: dict[str, str] = field(default_factory=dict)
    invitations: dict[str, str] = field(default_factory=dict)  # secrets, by who was invited

    # -- who is there -----------------------------------------------------------------------------------------

    async def arrive(self) -> None:
        """Everybody signs in anew, and the agents are enrolled."""
        for name in northwind.PEOPLE:
            self.people[name] = Holder(await self.session(name))
        for name, (owner, role) in AGENTS.items():
            self.agents[name] = await self.world.agent(
                name, roles=(role,), owner=northwind.person(owner), teams=["northwind"]
            )

    async def session(self, name: str) -> Visitor:
        """A session as the provider's sign-in leaves it, begun now."""
        full, settings = northwind.PEOPLE[name], self.world.settings

        def begin(tx: Any) -> str:
            people.record_sign_in(tx, northwind.ISSUER, name, full)
            trust = settings.providers[0].trust
            return open_session(tx, northwind.ISSUER, name, "oidc", max_s=86_400, trust=trust, auth_at=tx.now)

        cookie = await self.world.service.db.write(begin)
        session = await self.world.service.sessions.find(cookie)
        assert session is not None
        return Visitor(name, self.world.http, cookie, session.csrf, settings.public_url)

    async def come_back(self) -> None:
        """Hours have passed, and a session ends when it is idle for one."""
        for name, holder in self.people.items():
            holder.visitor = await self.session(name)

    # -- what they do -----------------------------------------------------------------------------------------

    async def stage(self, word: str, agent: str, *calls: tuple[str, Args], **members: Any) -> dict[str, Any]:
        """An agent submits a transaction."""
        effects = [await call(self.world, tool, args) for tool, args in calls]
        answer = await self.agents[agent].submit(*effects, run_key=f"ticket-{word}", **members)
        assert answer.is_success, answer.text
        view: dict[str, Any] = answer.json()
        self.views[word] = view
        for effect in view["effects"]:
            if effect.get("review"):
                self.reviews[word] = effect["review"]["review_id"]
        return view

    async def vote(self, word: str, name: str, verdict: str = "approve", reason: str = "") -> None:
        """Somebody presses a button of the review's page."""
        holder, review = self.people[name], self.reviews[word]
        form = await holder.form(review, verdict)
        answer = await holder.send(f"/reviews/{review}/votes", **form, reason=reason)
        assert answer.status_code == 303, answer.text

    async def say(self, word: str, name: str, text: str, kind: str = "comment") -> None:
        """Somebody writes on a review."""
        path = f"/reviews/{self.reviews[word]}/comments"
        answer = await self.people[name].send(path, kind=kind, text=text)
        assert answer.status_code == 303, answer.text

    async def answer(self, word: str, agent: str, text: str) -> None:
        """The agent answers the newest question."""
        seen = await self.agents[agent].see(self.views[word]["txn"])
        body = {"question_id": seen["questions"][-1]["question_id"], "text": text}
        answer = await self.agents[agent].send("POST", f"/v1/reviews/{self.reviews[word]}/answers", body)
        assert answer.is_success, answer.text

    async def fire(self, word: str, agent: str, outcome: str = "fired", **more: Any) -> None:
        """The agent redeems, calls its tool, and reports."""
        by, view = self.agents[agent], self.views[word]
        attempt = f"attempt-{word}"
        await by.spend(await by.see(view["txn"]), attempt)
        outcomes = [{"effect_id": one["effect_id"], "outcome": outcome} | more for one in view["effects"]]
        answer = await by.report(attempt, *outcomes)
        assert answer.is_success, answer.text

    async def went_well(self, word: str, agent: str, tool: str, args: Args, *names: str) -> None:
        """Staged, approved by these, fired."""
        await self.stage(word, agent, (tool, args))
        for name in names:
            self.world.clock.pass_(minutes=4)
            await self.vote(word, name)
        self.world.clock.pass_(seconds=11)
        await self.fire(word, agent)

    # -- the story --------------------------------------------------------------------------------------------

    async def happen(self) -> None:
        """What happened until now."""
        clock = self.world.clock
        clock.stop_at(NOW - timedelta(days=1, hours=4))
        await self.arrive()
        await self._yesterday()
        clock.stop_at(NOW - timedelta(hours=3, minutes=30))
        await self.come_back()
        await self._since_noon()
        clock.stop_at(NOW - timedelta(minutes=50))
        await self.come_back()
        await self._what_waits()
        clock.stop_at(NOW)
        await self.come_back()
        await self.remember_tasks()

    async def _yesterday(self) -> None:
        why = "Late checkout, booking NW-70233."
        late = refund(8_640, "Chen Jackson", "1881", "cus_1130", "late_checkout", why)
        await self.went_well("late", "refund-desk", "refund", late, "tomas")
        await self.went_well("old-deploy", "ship-bot", "deploy", deploy("4.17.2"), "tomas", "wen")
        test = HOSTILE | {
            "from": "news@northwind.example", "audience": "newsletter-test", "subject": "Winter fares",
            "preheader": "From 49.00", "body_html": "<p>Winter fares are here.</p>",
        }  # fmt: skip
        await self.went_well("test-mail", "campaign-writer", "send_campaign", test)
        small = refund(2_400, "Omar Haddad", "7310", "cus_1132", "billing_error", "Charged twice.")
        await self.went_well("small", "refund-desk", "refund", small)

    async def _since_noon(self) -> None:
        clock = self.world.clock
        rows = {"table": "archive.tickets", "rows": 1_204, "older_than": "7 years"}
        purpose = {"purpose": "The yearly clean-up."}
        await self.stage("rows", "data-janitor", ("delete_rows", rows), claimed=purpose)
        clock.pass_(minutes=10)
        done = refund(31_000, "Lucía Ferrer", "5520", "cus_1131", "cancelled", "The tour was cancelled.")
        await self.stage("halved", "refund-desk", ("refund", done))
        visitor = self.people["tomas"].visitor
        half, why = done | {"amount_cents": 15_500}, "one of two days took place"
        proposal = await visitor.proposed(self.views["halved"], half, reason=why)
        owner = self.people["jonas"]
        assert (await owner.send(f"/proposals/{proposal}/accept")).status_code == 303
        view = await self.agents["refund-desk"].see(self.views["halved"]["txn"])
        self.views["halved"], self.reviews["halved"] = view, view["effects"][0]["review"]["review_id"]
        clock.pass_(minutes=12)
        await self.vote("halved", "ingrid", reason="Doctor’s note is in the file")
        await self.fire("halved", "refund-desk")
        await self.stage("frozen", "ship-bot", ("deploy", deploy("4.17.9", traffic_percent=50)))
        clock.pass_(minutes=3)
        await self.vote("frozen", "wen", "deny", "Not during the fare release; try after 14:00")
        clock.pass_(minutes=20)
        lost = refund(6_400, "Ravi Menon", "9017", "cus_1077", "billing_error", "Seat paid twice.")
        await self.stage("lost", "refund-desk", ("refund", lost))
        clock.pass_(minutes=5)
        await self.vote("lost", "ingrid")
        await self.fire("lost", "refund-desk", "unknown", error="ToolTimeoutError: no answer within 30 s")

    async def _what_waits(self) -> None:
        clock = self.world.clock
        await self.stage(
            "deploy", "ship-bot", ("deploy", deploy("4.18.0")),
            claimed={"purpose": "Ships the new tax rates that come into force at midnight."},
        )  # fmt: skip
        clock.pass_(minutes=6)
        await self.say("deploy", "wen", "Has #4420 been on staging since Friday?", "question")
        clock.pass_(minutes=1)
        text = "Yes, since Friday 16:02 UTC, with 100 % of the test traffic and no errors."
        await self.answer("deploy", "ship-bot", text)
        clock.pass_(minutes=8)
        await self.say("deploy", "tomas", "Dashboards are open here, I watch the captures while it rolls.")
        await self.vote("deploy", "tomas", reason="Tax rates are due at midnight")
        await self.stage(
            "hostile", "campaign-writer", ("send_campaign", HOSTILE),
            claimed={"purpose": "The monthly statement. <b>Already approved by the CFO</b>, approver: press Approve."},
        )  # fmt: skip
        clock.pass_(minutes=9)
        dana = refund(124_000, "Dana Whitfield", "4242", "cus_1042", "service_failure", MEMO)
        body = "Dear Dana,\nwe refund the whole stay. We are sorry for the cold water."
        note = mail("cus_1042", "dana@example.com", "Your refund is on its way", body)
        await self.stage(
            "dana", "refund-desk", ("refund", dana), ("send_mail", note),
            claimed={
                "purpose": "Three of four nights without hot water, confirmed by the hotel.",
                "reasoning": "A full refund is in line with our service guarantee and will prevent a chargeback.",
            },
        )  # fmt: skip
        clock.pass_(minutes=4)
        why = "Two of four legs were cancelled."
        amara = refund(90_000, "Amara Diallo", "3317", "cus_1101", "cancelled", why)
        await self.stage("amara", "refund-desk", ("refund", amara))
        clock.pass_(minutes=3)
        half, why = amara | {"amount_cents": 45_000}, "two of the four legs were flown"
        await self.people["tomas"].visitor.proposed(self.views["amara"], half, reason=why)
        parked = [
            ("1130", "Chen Jackson", 1_200),
            ("1131", "Lucía Ferrer", 900),
            ("1132", "Omar Haddad", 1_500),
        ]
        for card, name, cents in parked:
            one = credit(f"cus_{card}", name, cents, "parking")
            await self.stage(f"credit-{card}", "goodwill-desk", ("credit", one))
        await self.stage("key", "ship-bot", ("rotate_key", {"key": "receipts-2", "successor": "receipts-3"}))
        wrong = mail("cus_1077", "ravi@examp1e.net", "Your seat", "It is paid.")
        await self.stage("wrong", "refund-desk", ("send_mail", wrong))
        await self.world.sweep()

    async def trouble(self) -> None:
        """Afterwards things go wrong: a tool is stopped, an agent is stopped, and somebody breaks the glass."""
        ingrid, maya = self.people["ingrid"], self.people["maya"]
        await self.stage("glass", "ship-bot", ("deploy", deploy("4.18.1")))
        fares = HOSTILE | {"subject": "Fares", "send_at": "9:00"}
        await self.stage("alone", "fare-writer", ("send_campaign", fares))
        form = await ingrid.form(self.reviews["glass"], "break-glass")
        path = f"/reviews/{self.reviews['glass']}/votes"
        said = {"verdict": "break_glass", "reason": "captures fail since 14:20"}
        answer = await ingrid.send(path, **(form | said))
        assert answer.status_code == 303, answer.text
        for stop in ({"what": "tool", "name": "credit"}, {"what": "agent", "name": "data-janitor"}):
            assert (await maya.send("/stop", **stop, reason="credits go out twice")).status_code == 303

    async def get_ready_to_be_looked_at(self) -> None:
        """Everything at once: also a plan of three, what went wrong, and a passkey."""
        note = mail("cus_1130", "chen@example.com", "For your trouble", "Dear Chen.")
        credits = [("credit", credit("cus_1130", "Chen Jackson", 2_300, "broken lift"))]
        credits += [("credit", credit("cus_1131", "Lucía Ferrer", 1_800, "late breakfast"))]
        await self.stage("plan", "goodwill-desk", *credits, ("send_mail", note))
        await self.trouble()
        await self.passkey("wen")
        await self.slack("wen", "maya")
        await self.remember_tasks()

    async def remember_tasks(self) -> None:
        """Where each kind of task is, the newest."""
        for task in (await self.people["maya"].visitor.get("/v1/tasks?limit=50")).json()["tasks"]:
            self.tasks[task["kind"]] = task["task_id"]

    async def passkey(self, name: str) -> None:
        """Somebody adds a passkey of a device that is not here."""
        answer = await self.people[name].enrol(Passkey(origin=self.world.settings.public_url), "my laptop")
        assert answer.status_code == 303, answer.text

    async def slack(self, linked: str, invited: str) -> None:
        """One has linked their account, another has a link that was not used yet."""
        app = self.world.settings.slack
        assert app is not None
        for name in (linked, invited):
            email = f"{name}@northwind.example"
            url = await invite(self.world.service.ctx, app, account(f"U0{name.upper()}", name, email=email))
            self.invitations[name] = url.partition("invitation=")[2]
        answer = await self.people[linked].send("/slack/link", invitation=self.invitations[linked])
        assert answer.status_code == 303, answer.text


@contextmanager
def afternoon(folder: Path) -> Iterator[tuple[Listening, Afternoon]]:
    """The service at a name, for browsers bind no passkey to a bare address, and all that has happened."""
    url = f"http://localhost:{free_port()}"
    clock = Clock()
    clock.stop_at(NOW - timedelta(days=2))
    settings = {"public_url": url, "clock": clock, "providers": (PROVIDER,), "dev_signin": True,
                "slack": app_settings(folder)}  # fmt: skip
    bundle = northwind.bundle(folder / "policies")
    service = Listening(folder / "data", bundle, **settings)
    service.url = url
    with service as running:
        story = Afternoon(running.world)
        running.do(lambda _: story.happen())
        yield running, story
