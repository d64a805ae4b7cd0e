"""Texts of tools, probes and adapters are descriptions: none of them changes what is known of an effect."""

import os
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from countersign import MemoryAdapter, Unsure, errors, probe, resume, tool
from countersign.adapters.memory import MemorySession
from countersign.texts import MAX_TEXT, storable, text_of
from tests.fakes.desk import Desk, answering_tool, charge_tools, failing_tool, service_states, states
from tests.fakes.running import fails, run
from tests.unit.sdk.journals import BOTH
from tests.unit.sdk.tools.test_unwritable_args import RaisingDict, fail, shared, twice


class LyingText(str):
    """A text whose methods answer other things than its characters."""

    def __getitem__(self, _: Any) -> Any:
        return 7

    def encode(self, *_: Any) -> Any:
        raise RuntimeError("no bytes of mine")

    def __format__(self, _: str) -> Any:
        raise RuntimeError("no format of mine")


class Reading(errors.NotDone):
    """Its text is the result of `answer`."""

    def __init__(self, answer: Any) -> None:
        super().__init__("not this one")
        self.answer = answer

    def __str__(self) -> str:
        return self.answer()  # type: ignore[no-any-return]

    __repr__ = __str__


def raising(error: BaseException) -> Any:
    def answer() -> Any:
        raise error

    return answer


def recursing() -> Any:
    return recursing()


def with_odd_notes(error: errors.NotDone) -> errors.NotDone:
    error.__notes__ = 7  # type: ignore[assignment]
    return error


class Args(errors.NotDone):
    """Exception.__str__ reads `args`, of which this has an object that cannot be read."""

    def __init__(self) -> None:
        super().__init__(Reading(raising(ValueError("no"))), "\udcff")


ODD: dict[str, errors.NotDone] = {
    "a file name of other bytes": errors.NotDone(f"no file {os.fsdecode(b'caf' + bytes([0xE9]))}"),
    "half a surrogate pair": errors.NotDone("\ud83d"),
    "both halves, the wrong way round": errors.NotDone("\udc00\ud800"),
    "U+0000": errors.NotDone("a\0b"),
    "ten million characters": errors.NotDone("x" * 10_000_000),
    "ten thousand halves": errors.NotDone("\udcff" * 10_000),
    "an ANSI sequence and a line break": errors.NotDone("\x1b[2J\r\n"),
    "nothing": errors.NotDone(),
    "__str__ raises": Reading(raising(ValueError("no"))),
    "__str__ raises itself": Reading(raising(errors.NotDone("\udcff"))),
    "__str__ exits": Reading(raising(SystemExit(3))),
    "__str__ is interrupted": Reading(raising(KeyboardInterrupt())),
    "__str__ stops a generator": Reading(raising(GeneratorExit())),
    "__str__ never ends": Reading(recursing),
    "__str__ is no text": Reading(lambda: 7),
    "__str__ is a text of its own kind": Reading(lambda: LyingText("refused \udcff")),
    "args that cannot be read": Args(),
    "notes that are no list": with_odd_notes(errors.NotDone("no")),
    "bytes": errors.NotDone(b"\xff"),
}


EACH = pytest.mark.parametrize("error", ODD.values(), ids=ODD)
SOME = [
    "half a surrogate pair", "nothing", "__str__ raises itself", "__str__ exits", "__str__ is a text of its own kind",
    "args that cannot be read",
]  # fmt: skip
A_FEW = pytest.mark.parametrize("error", [ODD[name] for name in SOME], ids=SOME)


def is_storable(text: str) -> bool:
    try:
        return type(text) is str and "\0" not in text and text.encode("utf-8").decode() == text
    except UnicodeEncodeError:
        return False


@pytest.mark.parametrize("engine", BOTH)
@EACH
def test_what_a_tool_says_went_wrong_keeps_nothing_from_being_taken_back(desk: Desk, error: Any) -> None:
    charge, notify = charge_tools(desk), failing_tool(desk, error, acts=False)
    left = fails(desk, errors.EffectFailed, (charge, "o-1", 100), (notify, "o-1"))
    assert desk.done == [("charge", "o-1", 100), ("void", "c-o-1", 100)]
    assert states(desk) == {"charge#1": "compensated", "notify#2": "failed"}
    assert service_states(desk, left.txn.txn) == ["compensated", "failed"]
    text = left.placed[1].error
    assert text.startswith(type(error).__name__) and is_storable(text) and is_storable(left.said)
    with desk.restarted() as after:
        resume(after.runtime)
        assert states(after) == {"charge#1": "compensated", "notify#2": "failed"}


def outcome_of(desk: Desk, step: list[tuple[Any, ...]], raises: type[Exception]) -> dict[str, str]:
    """The states after a step that raises this, in storable words."""
    assert is_storable(fails(desk, raises, *step).said)
    return states(desk)


@A_FEW
def test_a_compensation_that_says_so_did_not_happen(desk: Desk, error: errors.NotDone) -> None:
    """It differs from a compensated one."""
    charge, notify = charge_tools(desk), failing_tool(desk, errors.NotDone("full"), acts=False)

    def refuses(name: str) -> None:
        if name == "void":
            raise error

    desk.before_fire = refuses
    after = outcome_of(desk, [(charge, "o-1", 100), (notify, "o-1")], errors.EffectFailed)
    assert after == {"charge#1": "compensation_failed", "notify#2": "failed"}
    assert desk.runtime.journal.transactions.find("t-1")[0].state == "unsettled"


@A_FEW
def test_an_adapter_may_fail_in_any_words(desk: Desk, error: errors.NotDone, monkeypatch: Any) -> None:
    def cannot(*_: Any) -> None:
        raise error

    monkeypatch.setattr(MemorySession, "commit", cannot)
    memory = MemoryAdapter()
    live = tool("note", lane="live", adapter=memory, registry=desk.registry)
    note = live(lambda: memory.__setitem__("n", 1))
    after = outcome_of(desk, [(note,), (charge_tools(desk), "o-1", 100)], errors.LiveCommitFailed)
    assert after == {"charge#1": "compensated"}


UNSURE = ["\udcff", "a\0b", LyingText("\ud800"), 7, None, ["\udcff"], "x" * 10_000]


@pytest.mark.parametrize("why", UNSURE, ids=range(len(UNSURE)))
def test_a_probe_may_say_anything_of_why_it_cannot_tell(desk: Desk, why: Any) -> None:
    probe("look", registry=desk.registry)(lambda order_id: Unsure(why))
    slow = failing_tool(desk, TimeoutError("slow"), probe="look")
    assert outcome_of(desk, [(slow, "o-1")], errors.OutcomeUnknown) == {"notify#1": "unknown"}


def test_a_failure_at_the_same_time_as_others_is_written_as_it_is(desk: Desk) -> None:
    charge, notify = charge_tools(desk), failing_tool(desk, ODD["__str__ exits"], acts=False)
    fails(desk, errors.EffectFailed, [(charge, "o-1", 100), (notify, "o-1")])
    assert states(desk) == {"charge#1": "compensated", "notify#2": "failed"}


class Unwritable:
    """A result that nothing can be read of."""

    __repr__ = __eq__ = fail  # type: ignore[assignment]

    def __getattribute__(self, name: str) -> Any:
        return object.__getattribute__(self, name) if name.startswith("__") else fail()


RESULTS: Any = {
    "half a surrogate pair": lambda: {"name": "\udcff"},
    "a key of half a pair": lambda: {"\udcff": 1},
    "U+0000": lambda: "a\0b",
    "an object": Unwritable,
    "a mapping that raises": lambda: RaisingDict(a=1),
    "a list of itself": twice,
    "values shared 2**60 times": shared,
    "a number with many digits": lambda: 10**5000,
    "a number beyond JSON": lambda: 1e21,
    "no number": lambda: float("nan"),
    "a key with many digits": lambda: {10**5000: 1},
    "a set": lambda: {1},
    "bytes": lambda: b"\xff",
}


@pytest.mark.parametrize("engine", BOTH)
@pytest.mark.parametrize("result", RESULTS.values(), ids=RESULTS)
def test_an_unwritable_result_leaves_it_fired(desk: Desk, result: Any) -> None:
    value = result()
    look = answering_tool(desk, value, name="look")
    left = run(desk, (look, "o-1"))
    (placed,) = left.placed
    assert (placed.outcome, placed.result is value, left.txn.state) == ("fired", True, "settled")
    assert service_states(desk, left.txn.txn) == ["fired"]
    with desk.restarted() as after:
        again = run(after, (look, "o-1"))
    assert (again.txn.replayed, again.placed[0].outcome, desk.done) == (True, "fired", [("look", "o-1")])
    assert resume(desk.runtime) == []


def test_an_interrupt_at_the_result_leaves_it_fired(desk: Desk, monkeypatch: Any, charge: Any) -> None:
    def interrupted(_: object) -> bytes:
        raise KeyboardInterrupt

    monkeypatch.setattr("countersign.tools.results.admitted_bytes", interrupted)
    desk.run((charge, "o-1", 100), raises=KeyboardInterrupt)
    assert states(desk) == {"charge#1": "fired"}


@given(st.text(st.characters(), max_size=50) | st.text(st.characters(categories=["Cs", "Cc"]), max_size=50))
def test_storable_text_is_text_everywhere_and_good_text_stays_as_it_is(text: str) -> None:
    stored = storable(text)
    assert is_storable(stored)
    assert storable(stored) == stored
    if is_storable(text):
        assert stored == text
    assert text_of(Exception(text)) == stored


@pytest.mark.parametrize("text", ["x" * (MAX_TEXT + 1), "\udcff" * MAX_TEXT, "\0" * MAX_TEXT])
def test_storable_text_has_a_bound(text: str) -> None:
    assert len(storable(text)) <= MAX_TEXT
