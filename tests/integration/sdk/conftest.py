"""The SDK in front of the real service: a served process, a bundle made from drafts, people at a browser."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import httpx2
import pytest

from countersign import (
    NotDone,
    Placeholder,
    ProbeAnswer,
    ReviewPending,
    Runtime,
    Settings,
    SQLiteAdapter,
    ToolRegistry,
    Unsure,
    current_effect,
    probe,
    tool,
)
from countersign.manifests.drafting import manifest_json
from examples.local_service import LocalService, free_port
from examples.person import Person
from tests.fakes.desk import notes_database
from tests.fakes.local_service import WarmService
from tests.fakes.mcp_bank import mcp_manifests
from tests.house.repository import ROOT

ROLE = "support-agent"
POLICY = """
@id("desk-may-act")
permit (principal in Role::"support-agent", action, resource);

@id("large-needs-finance") @approval("finance")
forbid (principal, action == Action::"refund", resource)
when { context.input.amount_cents > 5000 };

@id("transfers-need-finance") @approval("finance")
forbid (principal, action == Action::"transfer", resource)
when { context.input.amount_cents > 5000 };

@id("never-huge") @doc("Refunds above 5,000.00 are not made here.")
forbid (principal, action == Action::"refund", resource)
when { context.input.amount_cents > 500000 };
"""


_SIGNED_IN: dict[tuple[str, str], Person] = {}


@pytest.fixture(scope="session", autouse=True)
def _closed_browsers() -> Iterator[None]:
    yield
    for person in _SIGNED_IN.values():
        person.__exit__(None, None, None)
    _SIGNED_IN.clear()


@dataclass
class Tools:
    """The tools of these tests; what happened to the world is in `done`."""

    notes: Path
    registry: ToolRegistry = field(default_factory=ToolRegistry)
    done: list[tuple[Any, ...]] = field(default_factory=list)
    keys: list[str] = field(default_factory=list)
    error: BaseException | None = None
    refund: Callable[[str, int], Placeholder[str]] = field(init=False)
    charge: Callable[[str, int], Placeholder[dict[str, str]]] = field(init=False)
    notify: Callable[[str], Placeholder[None]] = field(init=False)
    send: Callable[[str], Any] = field(init=False)
    note: Callable[[str, str], None] = field(init=False)
    mail: Callable[[str], Placeholder[None]] = field(init=False)
    label: Callable[[str], Placeholder[None]] = field(init=False)
    pay: Callable[[str, int], Placeholder[dict[str, str]]] = field(init=False)
    found: ProbeAnswer = field(default_factory=Unsure)
    before_label: Callable[[], None] | None = None

    def __post_init__(self) -> None:
        @tool("refund", resource=("Order", "order_id"), registry=self.registry)
        def refund(order_id: str, amount_cents: int) -> str:
            """Give money back."""
            self.act("refund", order_id, amount_cents)
            return f"r-{order_id}"

        @tool("void", resource=("Charge", "charge_id"), registry=self.registry)
        def void(charge_id: str, amount_cents: int) -> None:
            """Take a charge back."""
            self.act("void", charge_id, amount_cents)

        @tool(
            "charge",
            resource=("Order", "order_id"),
            compensate="void",
            compensation_map={"charge_id": "result:/charge_id", "amount_cents": "args:/amount_cents"},
            registry=self.registry,
        )
        def charge(order_id: str, amount_cents: int) -> dict[str, str]:
            """Charge an order."""
            self.act("charge", order_id, amount_cents)
            return {"charge_id": f"c-{order_id}"}

        @tool("notify", resource=("Order", "order_id"), registry=self.registry)
        def notify(order_id: str) -> None:
            """Tell the customer."""
            if not isinstance(self.error, NotDone):
                self.act("notify", order_id)
            if self.error is not None:
                raise self.error

        @tool("send", resource=("Order", "order_id"), registry=self.registry)
        async def send(order_id: str) -> str:
            """Send."""
            self.act("send", order_id)
            return "sent"

        @tool("mail", resource=("Order", "order_id"), on_exhausted="tool", registry=self.registry)
        def mail(order_id: str) -> None:
            """Tell the customer, who may not have a mailbox."""
            raise NotDone("no mailbox")

        @tool("label", resource=("Order", "order_id"), idempotent=True, registry=self.registry)
        def label(order_id: str) -> None:
            """Set a label."""
            if self.before_label is not None:
                self.before_label()
            self.act("label", order_id)

        self.mail, self.label, self.pay = mail, label, self._payment()
        database = SQLiteAdapter(self.notes, name="notes")

        @tool("note", lane="live", adapter=database, registry=self.registry)
        def note(order_id: str, text: str) -> None:
            """Write a note."""
            database.connection.execute("INSERT OR REPLACE INTO notes VALUES (?, ?)", (order_id, text))

        self.refund, self.charge, self.notify, self.send, self.note = refund, charge, notify, send, note

    def _payment(self) -> Callable[[str, int], Placeholder[dict[str, str]]]:
        @probe("find_pay", registry=self.registry)
        def find_pay(order_id: str) -> ProbeAnswer:
            return self.found

        @tool(
            "pay",
            resource=("Order", "order_id"),
            compensate="void",
            compensation_map={"charge_id": "result:/charge_id", "amount_cents": "args:/amount_cents"},
            probe="find_pay",
            registry=self.registry,
        )
        def pay(order_id: str, amount_cents: int) -> dict[str, str]:
            """Pay, over a line that is cut each time."""
            self.act("pay", order_id, amount_cents)
            raise ConnectionError("cut")

        return pay

    def act(self, *what: Any) -> None:
        self.done.append(what)
        self.keys.append(current_effect().call_key)


@dataclass
class Office:
    """One agent, the service it asks, and the people who answer."""

    service: LocalService
    settings: Settings
    tools: Tools
    runtime: Runtime

    def approve(self, pending: ReviewPending) -> None:
        self._answer(pending, lambda person, url: person.approve(url, "looks right"))

    def deny(self, pending: ReviewPending, reason: str) -> None:
        self._answer(pending, lambda person, url: person.deny(url, reason))

    def person(self, name: str) -> Person:
        """Somebody who is signed in: once for all tests, for each link is a process of the operator's."""
        who = (self.service.url, name)
        if who not in _SIGNED_IN:
            _SIGNED_IN[who] = Person(self.service.url)
            _SIGNED_IN[who].sign_in(self.service.sign_in_link(name))
        return _SIGNED_IN[who]

    def _answer(self, pending: ReviewPending, answer: Callable[[Person, str], None]) -> None:
        (review,) = pending.reviews
        assert review.url is not None
        answer(self.person("maya"), review.url)

    def elsewhere(self, **changes: Any) -> Runtime:
        """Another process of the same agent; with its own journal, another host."""
        return Runtime(replace(self.settings, **changes), registry=self.tools.registry)

    def through(self, transport: httpx2.BaseTransport) -> Runtime:
        return Runtime(self.settings, registry=self.tools.registry, transport=transport)


def reviewed_bundle(folder: Path) -> Path:
    """A bundle of our tools' drafts, reviewed as they are."""
    bundle = folder / "bundle"
    (bundle / "tools").mkdir(parents=True)
    (bundle / "desk.cedar").write_text(POLICY)
    (bundle / "groups.toml").write_bytes((ROOT / "policies" / "groups.toml").read_bytes())
    drafts = [one.draft_manifest() for one in Tools(folder / "none.db").registry if one.lane == "staged"]
    for manifest in [*drafts, *mcp_manifests()]:
        (bundle / "tools" / f"{manifest.tool}.json").write_bytes(manifest_json(manifest))
    return bundle


def serving(folder: Path, environment: dict[str, str] | None = None) -> LocalService:
    """A service of these tools, in a process with this beside its environment."""
    return WarmService(folder / "service", reviewed_bundle(folder), port=free_port(), environment=environment)


@pytest.fixture(scope="session")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalService]:
    """The real service with a bundle of our tools' drafts, reviewed as they are."""
    with serving(tmp_path_factory.mktemp("office")) as served:
        yield served


@pytest.fixture(scope="session")
def enrolled(service: LocalService) -> Settings:
    return service.enroll("support", ROLE)


@pytest.fixture
def office(service: LocalService, enrolled: Settings, tmp_path: Path) -> Iterator[Office]:
    tools = Tools(notes_database(tmp_path))
    settings = replace(enrolled, journal_path=tmp_path / "journal.db", retry_base_seconds=0.01)
    with Runtime(settings, registry=tools.registry) as runtime:
        yield Office(service, settings, tools, runtime)


@pytest.fixture
def key(request: pytest.FixtureRequest) -> str:
    """A run key nobody else has: the tests share one service and one agent."""
    return str(request.node.name)
