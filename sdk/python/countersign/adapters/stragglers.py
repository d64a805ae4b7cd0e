"""The exam's chapter about what a live effect leaves behind: a thread or a task that goes on after it, in its context.

A tool gives up on one by `wait_for(to_thread(...))`, or forgets it. It is refused.
"""

from __future__ import annotations

import contextvars
import threading
from collections.abc import Callable
from pathlib import Path

from countersign.adapters.examined import (
    CALL,
    A,
    Examined,
    Resource,
    commit,
    equal,
    interrupt,
    raises,
)
from countersign.adapters.protocol import LiveAdapter
from countersign.errors import OutsideTransaction

Late = Callable[[], None]


class Stragglers(Examined):
    """What comes late is refused, whatever became of the effect and whatever runs by then."""

    def test_what_an_effect_that_raised_has_started_does_nothing_after_it(self, tmp_path: Path) -> None:
        resource, adapter, session = self.begun(tmp_path, k="old")
        late: list[Late] = []
        with raises(TimeoutError), session.effect(CALL):
            resource.write(adapter, "more", "half")
            late += _left_behind(resource, adapter)
            interrupt(TimeoutError)
        for one in late:
            one()
        with session.effect(CALL):
            equal((resource.read(adapter, "k"), resource.read(adapter, "more")), ("old", None), "after it")
        session.prepare(A)
        commit(session)
        equal((resource.outside("k"), resource.outside("more")), ("old", None), "after the commit")

    def test_what_an_effect_has_started_does_nothing_in_the_next_one(self, tmp_path: Path) -> None:
        for ends_well in (True, False):
            resource, adapter, session = self.begun(tmp_path / str(ends_well), k="old")
            late: list[Late] = []
            if ends_well:
                with session.effect(CALL):
                    late += _left_behind(resource, adapter)
            else:
                with raises(TimeoutError), session.effect(CALL):
                    late += _left_behind(resource, adapter)
                    interrupt(TimeoutError)
            with session.effect(CALL):
                resource.write(adapter, "mine", "new")
                for one in late:
                    one()
            session.prepare(A)
            commit(session)
            seen = [resource.outside(key) for key in ("k", "more", "mine")]
            equal(seen, ["old", None, "new"], "after the commit")

    def test_what_an_inner_effect_has_started_does_nothing_in_the_outer_one(self, tmp_path: Path) -> None:
        resource, adapter, session = self.begun(tmp_path, k="old")
        late: list[Late] = []
        with session.effect(CALL):
            with raises(TimeoutError), session.effect(CALL):
                late += _left_behind(resource, adapter)
                interrupt(TimeoutError)
            for one in late:
                one()
            resource.write(adapter, "mine", "new")
        session.prepare(A)
        commit(session)
        seen = [resource.outside(key) for key in ("k", "more", "mine")]
        equal(seen, ["old", None, "new"], "after the commit")

    def test_what_an_effect_has_started_and_waits_for_is_part_of_it(self, tmp_path: Path) -> None:
        resource, adapter, session = self.begun(tmp_path)
        with session.effect(CALL):
            equal(_heard(lambda: resource.write(adapter, "k", "new"))(), "nothing", "what a thread hears")
            equal(resource.read(adapter, "k"), "new", "inside")
        session.prepare(A)
        commit(session)
        equal(resource.outside("k"), "new", "after the commit")


def _left_behind(resource: Resource, adapter: LiveAdapter) -> list[Late]:
    """What threads that are started now try when they are let go."""
    return [
        _refused(lambda: resource.write(adapter, "more", "late")),
        _refused(lambda: resource.write(adapter, "k", "late")),
        _refused(lambda: resource.remove(adapter, "k")),
        _refused(lambda: resource.read(adapter, "k")),
    ]


def _refused(act: Callable[[], object]) -> Late:
    heard = _heard(act)
    return lambda: equal(heard(), "OutsideTransaction", "what a thread hears that goes on after its effect")


def _heard(act: Callable[[], object]) -> Callable[[], str]:
    """What a thread hears once it is let go. It has the context of now, as `asyncio.to_thread` gives it."""
    answers: list[str] = []

    def tries() -> None:
        try:
            act()
            answers.append("nothing")
        except OutsideTransaction:
            answers.append("OutsideTransaction")
        except BaseException as error:  # noqa: BLE001 - a thread raises to nobody
            answers.append(repr(error))

    thread = threading.Thread(target=contextvars.copy_context().run, args=(tries,))

    def let_go() -> str:
        thread.start()
        thread.join()
        return answers[0]

    return let_go
