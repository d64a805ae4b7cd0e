"""One secret through everything that becomes of a call, and then a hunt for it: the journal's bytes, and all output.

Nothing but the service and the tools themselves ever gets the value: the service, for it is what people sign; the
tools, for they are fired with it.
"""

import json
import logging
import traceback
from dataclasses import dataclass, field
from typing import Any

import pytest

from countersign import SQLiteAdapter, errors, llm_call, replay, resume, tool, transaction
from countersign.contract import EffectState
from countersign.contract.states import Outcome
from countersign.journal import EffectOutcome, LocalState, RemoteOutcome
from countersign.journal.location import JournalLocation
from countersign.journal.sealing_keys import add_key
from countersign.journal.shown import HIDDEN
from countersign.journal.verification import verify
from countersign.recovery.prior_run import plan_from_journal
from tests.fakes.desk import Desk, effect_rows, make_desk, notes_database
from tests.fakes.llm_answers import ANTHROPIC
from tests.fakes.running import order_tool
from tests.unit.sdk.hunting import SECRET, everything_of, found_in
from tests.unit.sdk.journals import both_engines, journal_command

__all__ = ["both_engines"]

LARGE = 90_000
PASSENGER = {"name": "ada", "passport": SECRET}


class Killed(BaseException):
    """The process ends here."""


@dataclass
class Airline:
    """The tools of a travel agent, and everything that was ever said."""

    desk: Desk
    spans: Any
    dies: list[BaseException] = field(default_factory=list)
    heard: dict[str, bytes] = field(default_factory=dict)

    def __post_init__(self) -> None:
        desk, dies = self.desk, self.dies

        @order_tool(desk, resource=("Passport", "passport"))
        def release(passport: str, locator: str) -> str:
            """Give a seat back. These are not declared secret: they are what the booking was made with."""
            desk.act("release", passport, locator)
            if locator.startswith("bad"):
                raise RuntimeError(f"no seat of {passport}")
            return f"released for {passport}"

        back = {"passport": "args:/passenger/passport", "locator": "result:/locator"}
        secret = ["/passenger/passport"]

        @order_tool(
            desk, resource=("Flight", "flight"), secret=secret, compensate="release", compensation_map=back
        )
        def book(flight: str, amount_cents: int, passenger: dict[str, str]) -> dict[str, str]:
            """Book a seat. The airline repeats the passport in its answer."""
            desk.act("book", flight, amount_cents, passenger["passport"])
            return {"locator": f"{flight}-{passenger['passport']}"}

        # the code does not call it secret, its reviewers did
        @order_tool(
            desk, resource=("Passport", "passport"), idempotent=True, changes={"secret": ("/passport",)}
        )
        def check_in(passport: str) -> str:
            """Check in: the resource itself is named by a secret."""
            desk.act("check_in", passport)
            if dies:
                raise dies.pop()
            return f"seat of {passport}"

        @order_tool(desk, secret=["card"])
        def pay(order_id: str, card: str) -> None:
            """Pay; errors quote the card."""
            if order_id == "refused":
                try:
                    raise ValueError(f"the bank does not like {card}")
                except ValueError as error:
                    raise errors.NotDone(f"{card} was refused") from error
            raise TimeoutError(f"no answer about {card}")

        database = SQLiteAdapter(notes_database(desk.folder))

        @tool("note", lane="live", adapter=database, secret=["passport"], registry=desk.registry)
        def note(order_id: str, passport: str) -> int:
            """Write that there is a passport, and not which."""
            assert passport == SECRET
            insert = "INSERT OR REPLACE INTO notes VALUES (?, 'ok')"
            return database.connection.execute(insert, (order_id,)).rowcount

        self.book, self.check_in, self.pay, self.note = book, check_in, pay, note

    def hear(self, where: str, what: object) -> None:
        """Something was said."""
        text = what if isinstance(what, str) else repr(what)
        self.heard[f"{len(self.heard)} {where}"] = text.encode("utf-8", "backslashreplace")

    def raised(self, error: BaseException) -> None:
        """An exception as its text, its repr and as a program prints it."""
        self.hear("error", f"{error}\n{error!r}\n{error.args!r}")
        self.hear("traceback", "".join(traceback.format_exception(error)))

    def meets(self, kind: type[BaseException], step: Any, key: str, **options: Any) -> Any:
        """Run a step that does not go through."""
        with pytest.raises(kind) as reported, transaction(key, runtime=self.desk.runtime, **options):
            step()
        self.raised(reported.value)
        return reported.value


@pytest.fixture
def airline(tmp_path: Any, place: JournalLocation, spans: Any) -> Any:
    keys = tmp_path / "keys"
    add_key(keys)
    desk = make_desk(tmp_path, journal_path=place, journal_key_path=keys)
    yield Airline(desk, spans)
    desk.runtime.close()
    assert verify(place).sound  # without any key


def flown(airline: Airline, monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything that can become of a call with a secret."""
    desk, runtime = airline.desk, airline.desk.runtime
    _reviewed_edited_fired(airline)
    _taken_back(airline)
    _unknown_and_settled(airline)
    _crashed_and_resumed(airline, monkeypatch)
    live = desk.run((airline.note, "o-1", SECRET), (airline.check_in, SECRET), key="live")
    airline.hear("transaction", live)
    calls = [(airline.note, "o-2", SECRET), (airline.book, "F1", 5, PASSENGER)]
    dry = desk.run(*calls, key="dry", dry_run=True)
    airline.hear("dry run", f"{dry.result}{dry.result!r}{dry.result.to_json()}")
    with llm_call("m", reasoning=True, runtime=runtime) as call:
        thought = {**ANTHROPIC, "content": [{"type": "thinking", "thinking": SECRET}]}
        airline.hear("call", call.record(thought))
    assert desk.done  # the tools had it in clear


def _reviewed_edited_fired(airline: Airline) -> None:
    desk = airline.desk
    call = (airline.book, "F1", LARGE, PASSENGER)
    pending = airline.meets(errors.ReviewPending, lambda: airline.book("F1", LARGE, PASSENGER), "reviewed")
    desk.service.edit(pending.txn, 0, {"flight": "F1", "amount_cents": LARGE - 1, "passenger": PASSENGER})
    # no one takes the change
    airline.meets(Exception, lambda: airline.book("F1", LARGE, PASSENGER), "reviewed")
    desk.run(call, key="reviewed", accept_edits=True, raises=errors.ReviewPending)
    desk.service.approve(pending.txn)
    for _ in range(2):  # the second time from the journal
        with desk.step("reviewed", accept_edits=True):
            booked = airline.book("F1", LARGE, PASSENGER)
        assert booked.result == {"locator": f"F1-{SECRET}"}
        airline.hear("placeholder", booked)
    assert desk.done[-1] == ("book", "F1", LARGE - 1, SECRET)


def _taken_back(airline: Airline) -> None:
    desk = airline.desk

    def step(flight: str, order: str) -> Any:
        return lambda: (airline.book(flight, 5, PASSENGER), airline.pay(order, SECRET))

    failed = airline.meets(errors.EffectFailed, step("F2", "refused"), "taken back")
    assert (failed.__cause__.kind, desk.done[-1]) == ("NotDone", ("release", SECRET, f"F2-{SECRET}"))
    airline.meets(errors.EffectFailed, step("bad", "refused"), "could not be taken back")
    assert desk.done[-1] == ("release", SECRET, f"bad-{SECRET}")


def _unknown_and_settled(airline: Airline) -> None:
    desk, runtime = airline.desk, airline.desk.runtime
    unknown = airline.meets(errors.OutcomeUnknown, lambda: airline.pay("slow", SECRET), "settled")
    assert unknown.__cause__.kind == "TimeoutError"
    (row,) = effect_rows(desk, "settled")
    assert row.error == "TimeoutError"
    reported = json.dumps(SECRET, ensure_ascii=False).encode()
    settlements = json.dumps([{"answer": "fired", "name": "Maya", "person": "p", "result": SECRET}])
    news = RemoteOutcome(row.effect_id, (LocalState.FIRED,), settlements.encode(), reported)
    lease: Any = runtime.journal.leases.acquire(unknown.txn)
    runtime.journal.settlements.learn(lease, row.staging, [news])
    runtime.journal.leases.release(lease)
    (row,) = effect_rows(desk, "settled")
    assert (row.result, row.parsed_settlements[0]["result"]) == (reported, SECRET)
    desk.service.settle(unknown.txn, row.effect_id, EffectState.FIRED)
    airline.hear("records", (row, news, EffectOutcome("e", Outcome.FIRED, "a", result=reported)))


def _crashed_and_resumed(airline: Airline, monkeypatch: pytest.MonkeyPatch) -> None:
    """It was firing when its process died; another one goes on from the journal alone."""
    desk, runtime = airline.desk, airline.desk.runtime
    airline.dies.append(Killed())
    with monkeypatch.context() as patched:
        patched.setattr(runtime.journal.effect_log, "write", lambda *_: None)  # the dead write nothing
        desk.run((airline.check_in, SECRET), key="crashed", raises=Killed)
    parked = airline.meets(errors.ReviewPending, lambda: airline.book("F3", LARGE, PASSENGER), "parked")
    desk.service.approve(parked.txn)
    with desk.another_process() as later:
        found = resume(later)
    airline.hear("resumed", found)
    ends = {one.run_key: one.after for one in found}
    assert (ends["crashed"], ends["parked"]) == ("settled", "settled")
    assert {("check_in", SECRET), ("book", "F3", LARGE, SECRET)} <= set(desk.done)
    record = runtime.journal.transactions.find("parked")[0]
    plan = plan_from_journal(record, runtime.journal, desk.registry)
    airline.hear("plan", (plan, plan.calls, effect_rows(desk, "parked")))
    assert plan.calls[0].kwargs()["passenger"]["passport"] == SECRET


def looked_at(airline: Airline) -> None:
    """Every way to look at the journal afterwards; none of them needs the key but replays."""
    known = airline.desk.runtime.journal.transactions
    keys = [known.key_of(one) for one in known.newest_ids(100)]
    words = ["list", "list --json", "stats", "verify", "verify --json", "filter --tool book"]
    words += [f"export --format {form}" for form in ("json", "csv", "md")]
    commands = [one.split() for one in words] + [
        ["show", key, *more] for key in keys for more in ([], ["--json"])
    ]
    for command in commands:
        reported = journal_command(airline.desk.runtime.settings.journal_path, *command)
        assert reported.exit_code == 0, reported.output
        airline.hear(" ".join(command), reported.output)
    assert HIDDEN in reported.output or "(secret)" in str(airline.heard)
    runtime = airline.desk.runtime

    def step(passport: str) -> Any:
        return lambda _: airline.book("F1", LARGE, {"name": "ada", "passport": passport})

    same = replay("reviewed", step(SECRET), runtime=runtime)
    assert (same.status, same.value.result) == ("same", {"locator": f"F1-{SECRET}"})
    (differs,) = replay("reviewed", step("another"), runtime=runtime).divergences
    assert "an argument that is hidden" in str(differs)

    def raises(_: Any) -> None:
        airline.book("F1", LARGE, PASSENGER)
        raise ValueError(SECRET)

    upset = replay("reviewed", raises, runtime=runtime)
    assert upset.divergences[-1].kind == "raised"
    for one in (same, upset):
        airline.hear("replay", f"{one}{one.to_json()}{[*one.outcomes]!r}{[*one.divergences]!r}")


def test_a_secret_is_found_nowhere(airline: Airline, monkeypatch: Any, caplog: Any, capfd: Any) -> None:
    with caplog.at_level(logging.DEBUG):
        flown(airline, monkeypatch)
        looked_at(airline)
    printed = capfd.readouterr()
    airline.hear("output", f"{printed.out}{printed.err}")
    airline.hear("log", caplog.text)
    airline.hear("records", str([vars(record) for record in caplog.records]))
    finished = airline.spans.get_finished_spans()
    airline.hear("spans", "".join(span.to_json() for span in finished))
    assert len(finished) > 20
    assert len(airline.heard) > 40
    assert found_in(airline.heard) == []
    assert found_in(everything_of(airline.desk.runtime.settings.journal_path)) == []
