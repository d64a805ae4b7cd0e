"""What both machines share: Hypothesis draws what everybody does next, the real service and the model do it, and they
are compared.

What may happen next is drawn by one rule from everything that is possible then. With a Hypothesis rule for each verb
most verbs would be left out of most runs, and little would ever be both approved and spent.
"""

from __future__ import annotations

import shutil
import tempfile
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import httpx2
from hypothesis import event
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from countersign.contract import TxnState
from tests.model.playing import Databases
from tests.model.real import LOST, Real
from tests.model.state import Refused

F = TypeVar("F", bound=Callable[..., None])
M = TypeVar("M", bound="Machine")
PICK = st.integers(0, 1_000)
STRETCHES = [1, 29, 31, 119, 121, 300, 700, 1_000, 1_300, 3_700, 45_000, 90_000]


@dataclass(frozen=True)
class Move:
    """Something somebody may do: when, how often as against the others, and with what drawn."""

    when: Callable[[Any], Any]
    often: int
    drawn: Mapping[str, st.SearchStrategy[Any]]


def may(
    *, when: Callable[[Any], Any] = lambda _: True, often: int = 1, **drawn: st.SearchStrategy[Any]
) -> Callable[[F], F]:
    """Mark a method of a machine as something that may happen next."""

    def mark(method: F) -> F:
        vars(method)["move"] = Move(when, often, drawn)
        return method

    return mark


class Machine(RuleBasedStateMachine):
    """One service on one engine, and the book of what it is expected to remember."""

    databases: ClassVar[Databases]
    moves: ClassVar[Counter[tuple[Any, Any]]]  # what was ever seen to move, over all runs
    steps: ClassVar[Counter[str]]  # what was ever answered, by verb
    book: Any

    def __init__(self, real: type[Real]) -> None:
        super().__init__()
        self._life = ExitStack()
        folder = Path(tempfile.mkdtemp(prefix="countersign-model-"))
        self._life.callback(shutil.rmtree, folder, ignore_errors=True)
        self.real: Any = real(folder, self._life.enter_context(type(self).databases()))
        self._life.callback(self.real.close)
        self.batches: list[Any] = []  # releases that were ever minted, with what was sent
        self.names = 0
        self.calm, self.alive = 0, 0  # requests since the last disturbance, and since the last start
        self.on_edge = False  # the clock stands on a deadline, and the next request comes in that moment

    @rule(data=st.data())
    def somebody_acts(self, data: st.DataObject) -> None:
        """Draw what happens, and with what, and let it happen."""
        every = {name: method.move for one in reversed(type(self).mro()) for name, method in vars(one).items()
                 if hasattr(method, "move")}  # fmt: skip
        possible = [name for name, move in every.items() for _ in range(move.often) if move.when(self)]
        name = data.draw(st.sampled_from(possible), label="what happens")
        getattr(self, name)(**data.draw(st.fixed_dictionaries(dict(every[name].drawn)), label="with"))

    # -- one step --------------------------------------------------------------------------------------------

    def exchange(
        self,
        verb: str,
        expected: Callable[[], Any],
        actual: Callable[..., Awaitable[httpx2.Response]],
        *,
        page: bool = False,
    ) -> tuple[Any, httpx2.Response] | None:
        """Do it on both sides and compare; what both answered, or None where both refused or the answer was lost.

        ``page``: it is a form, answered with a page or the way to one: a refusal's code does not stand on it.
        """
        self.tick()
        self.calm, self.alive = self.calm + 1, self.alive + 1
        lost = LOST.get()
        answer = self.real.do(actual)
        if lost is not None and answer.status_code == 503:
            self.note(verb, f"lost {lost} the commit")
            if lost == "after":
                _or_refused(expected)
            return None
        wanted = _or_refused(expected)
        if isinstance(wanted, Refused):
            self.note(verb, f"{wanted.status} {wanted.code}".strip())
            code = "" if page else wanted.code
            told = (answer.status_code, answer.json().get("code") if code else "")
            assert told == (wanted.status, code), f"{verb}: {wanted.args}, but {answer.text}"
            return None
        status = 303 if page else getattr(wanted, "status", 200)
        assert answer.status_code == status, f"{verb}: {status} was expected, but {answer.text}"
        self.note(verb, "done")
        return wanted, answer

    def tick(self) -> None:
        """The model looks at the clock."""
        self.book.now = self.real.clock()

    def note(self, verb: str, what: str) -> None:
        """One thing that happened, for the statistics."""
        event(f"{verb}: {what}")
        type(self).steps[f"{verb}: {what}"] += 1

    def fresh(self, what: str) -> str:
        """A name nobody has."""
        self.names += 1
        return f"{what}-{self.names}"

    def disturbed(self) -> None:
        """Something got in the way; most of what happens is people and agents who go on."""
        self.calm = 0

    def heads(self, *states: TxnState) -> list[Any]:
        """Revisions in force, in one of these states where some are given."""
        found = [revisions[-1] for revisions in self.book.revisions.values() if revisions]
        return [one for one in found if not states or one.state in states]

    # -- after each step -------------------------------------------------------------------------------------

    def check_invariants(self, *args: Any) -> None:
        """One look after each step, for the comparison and for every invariant."""
        self.look()
        super().check_invariants(*args)

    def both(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """What the tables hold, and the same of the model."""
        raise NotImplementedError

    def look(self) -> None:
        """What the tables hold is what the model holds."""
        held, remembered = self.both()
        differ = {
            what: [(key, rows.get(key), remembered[what].get(key)) for key in rows.keys() | remembered[what].keys()]
            for what, rows in held.items()
        }  # fmt: skip
        wrong = {what: [row for row in rows if row[1] != row[2]] for what, rows in differ.items()}
        assert held == remembered, {what: rows for what, rows in wrong.items() if rows}

    @invariant()
    def i8_every_transition_has_exactly_one_audit_row_and_the_reverse(self) -> None:
        """Replayed, the log ends where the tables are."""
        faults = self.real.do(self.real.faults)
        assert not faults, faults

    # -- time ------------------------------------------------------------------------------------------------

    def sweep(self) -> None:
        """What the timers do, on both sides."""
        raise NotImplementedError

    def deadlines(self) -> list[datetime]:
        """Moments to come at which something happens by itself."""
        raise NotImplementedError

    def _stand_at(self, moment: datetime) -> None:
        self.real.clock.stop_at(moment)
        self.on_edge = True

    @may(when=lambda self: self.calm > 1, stretch=st.sampled_from(STRETCHES), sweeping=st.booleans())
    def time_passes(self, stretch: int, sweeping: bool) -> None:
        """Timers may be late."""
        self.disturbed()
        self.real.clock.pass_(seconds=stretch)
        if sweeping:
            self.sweep()

    @may(
        when=lambda self: self.calm > 1 and self.deadlines(), pick=PICK, early=st.booleans(), sweeping=st.booleans()
    )  # fmt: skip
    def a_deadline_comes(self, pick: int, early: bool, sweeping: bool) -> None:
        """Exactly the moment something ends or others are asked, or the last before it."""
        self.disturbed()
        found = self.deadlines()
        self._stand_at(found[pick % len(found)] - timedelta(milliseconds=1 if early else 0))
        self.note("time", "just before a deadline" if early else "a deadline")
        if sweeping:
            self.sweep()


def _or_refused(expected: Callable[[], Any]) -> Any:
    try:
        return expected()
    except Refused as refusal:
        return refusal


def machine_on(machine: type[M], databases: Databases) -> type[M]:
    """A machine of its own, with its own statistics."""
    mine = type(f"{machine.__name__}OnAnEngine", (machine,), {"databases": staticmethod(databases)})
    mine.moves, mine.steps = Counter(), Counter()
    return mine
