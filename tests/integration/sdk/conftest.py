"""The SDK in front of the real service: a served process, a bundle made from drafts, people at a browser."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

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
    Transaction,
    Unsure,
    current_effect,
    probe,
    tool,
    transaction,
)
from countersign.contract import EffectState
from countersign.manifests.drafts import manifest_json
from examples.local_service import LocalService, free_port
from examples.person import Person
from tests.conventions.repository import ROOT
from tests.fakes.desk import agent_environment, notes_database
from tests.fakes.local_service import WarmService
from tests.fakes.mcp_bank import mcp_manifests

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

@id("long-memos-need-finance") @approval("finance")
forbid (principal, action == Action::"memo", resource)
when { context.input.text like "*long*" };

@id("no-names") @doc("Names do not belong in memos. Write the customer's number.")
forbid (principal, action == Action::"memo", resource)
when { context.input.text like "*Ada*" };
"""


_SIGNED_IN: dict[tuple[str, str], Person] = {}


@pytest.fixture(scope="session", autouse=True)
def _closed_browsers() -> Iterator[None]:
    yield
    for person in _SIGNED_IN.values():
        person.__exit__(None, None, None)
    _SIGNED_IN.clear()


ORDER = ("Order", "order_id")
_UNDO = {"charge_id": "result:/charge_id", "amount_cents": "args:/amount_cents"}
VOIDED: dict[str, Any] = {"compensate": "void", "compensation_map": _UNDO}


class Tools:
    """The tools of these tests; what happened to the world is in `done`."""

    def __init__(self, notes: Path) -> None:
        self.notes, self.registry = notes, ToolRegistry()
        self.done: list[tuple[Any, ...]] = []
        self.keys: list[str] = []
        self.error: BaseException | None = None
        self.found: ProbeAnswer = Unsure()
        mine, database = self.registry, SQLiteAdapter(notes, name="notes")

        @tool("refund", resource=ORDER, registry=mine)
        def refund(order_id: str, amount_cents: int) -> str:
            """Give money back."""
            self.act("refund", order_id, amount_cents)
            return f"r-{order_id}"

        @tool("void", resource=("Charge", "charge_id"), registry=mine)
        def void(charge_id: str, amount_cents: int) -> None:
            """Take a charge back."""
            self.act("void", charge_id, amount_cents)

        @tool("charge", resource=ORDER, registry=mine, **VOIDED)
        def charge(order_id: str, amount_cents: int) -> dict[str, str]:
            """Charge an order."""
            self.act("charge", order_id, amount_cents)
            return {"charge_id": f"c-{order_id}"}

        @tool("notify", resource=ORDER, registry=mine)
        def notify(order_id: str) -> None:
            """Tell the customer."""
            if not isinstance(self.error, NotDone):
                self.act("notify", order_id)
            if self.error is not None:
                raise self.error

        @tool("send", resource=ORDER, registry=mine)
        async def send(order_id: str) -> str:
            """Send."""
            self.act("send", order_id)
            return "sent"

        @tool("mail", resource=ORDER, on_exhausted="tool", registry=mine)
        def mail(order_id: str) -> None:
            """Tell the customer, who may not have a mailbox."""
            raise NotDone("no mailbox")

        def note(order_id: str, text: str) -> None:
            """Write a note."""
            database.connection.execute("INSERT OR REPLACE INTO notes VALUES (?, ?)", (order_id, text))

        self.note = tool("note", lane="live", adapter=database, registry=mine)(note)
        live: dict[str, Any] = {"lane": "live", "adapter": database, "registry": mine}
        self.memo = tool("memo", resource=ORDER, ask="live", **live)(note)
        self.refund, self.charge, self.notify, self.send = refund, charge, notify, send
        self.mail, self.pay = mail, self._payment()

    def _payment(self) -> Callable[[str, int], Placeholder[dict[str, str]]]:
        @probe("find_pay", registry=self.registry)
        def find_pay(order_id: str) -> ProbeAnswer:
            return self.found

        @tool("pay", resource=ORDER, probe="find_pay", registry=self.registry, **VOIDED)
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

    def refund(self, key: str, amount: int = 90_000, runtime: Any = None, **how: Any) -> Transaction:
        """A block with one refund: above 50.00 finance is asked, above 5,000.00 it is denied."""
        with transaction(key, runtime=runtime or self.runtime, **how) as txn:
            self.tools.refund("o-1", amount)
        return txn

    def asked(self, key: str, amount: int = 90_000, **how: Any) -> ReviewPending:
        """A refund that waits for people."""
        with pytest.raises(ReviewPending) as pending:
            self.refund(key, amount, **how)
        return pending.value

    def states(self, txn: Transaction) -> list[EffectState]:
        """What the service holds of the effects."""
        return [one.state for one in self.runtime.client().view(txn.txn).effects]

    def approve(self, pending: ReviewPending, by: str = "maya") -> None:
        self.person(by).approve(the_url(pending), "looks right")

    def person(self, name: str) -> Person:
        """Somebody who is signed in: once for all tests, for each link is a process of the operator's."""
        who = (self.service.url, name)
        if who not in _SIGNED_IN:
            _SIGNED_IN[who] = Person(self.service.url)
            _SIGNED_IN[who].sign_in(self.service.sign_in_link(name))
        return _SIGNED_IN[who]

    @contextmanager
    def meanwhile(self, key: str, work: Callable[[Person, str], None]) -> Iterator[None]:
        """While the block waits, Maya does this with the address of its one question."""
        client = self.runtime.client()

        def when_asked() -> None:
            until(lambda: key in [one.run_key for one in client.transactions().transactions])
            review = client.view(Transaction(self.runtime, key).txn).effects[0].review
            assert review is not None
            work(self.person("maya"), review.url)

        person = threading.Thread(target=when_asked)
        person.start()
        yield
        person.join()

    @property
    def environment(self) -> dict[str, str]:
        """What an agent's own process is given."""
        more = {"COUNTERSIGN_JOURNAL": str(self.settings.journal_path), "COUNTERSIGN_ALLOW_DEV": "1"}
        return agent_environment(self.settings) | more

    def elsewhere(self, **changes: Any) -> Runtime:
        """Another process of the same agent; with its own journal, another host."""
        return Runtime(replace(self.settings, **changes), registry=self.tools.registry)


def until(holds: Callable[[], Any]) -> None:
    """Wait for what another thread or process does."""
    end = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.05)


def the_url(pending: ReviewPending) -> str:
    """Where its one question is answered."""
    (review,) = pending.reviews
    assert review.url is not None
    return review.url


def reviewed_bundle(folder: Path) -> Path:
    """A folder with these rules, the usual groups and the drafts of our tools, reviewed as they are."""
    bundle, tools = folder / "bundle", Tools(folder / "none.db").registry
    (bundle / "tools").mkdir(parents=True)
    (bundle / "desk.cedar").write_text(POLICY)
    (bundle / "groups.toml").write_bytes((ROOT / "policies" / "groups.toml").read_bytes())
    drafts = [one.draft_manifest() for one in tools if one.name != "note"]
    for manifest in [*drafts, *mcp_manifests()]:
        (bundle / "tools" / f"{manifest.tool}.json").write_bytes(manifest_json(manifest))
    return bundle


def serving(folder: Path, environment: dict[str, str] | None = None) -> LocalService:
    """A service of these tools in its own process, with these additional settings."""
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
    """A unique run key: the tests share one service and one agent."""
    return str(request.node.name)
