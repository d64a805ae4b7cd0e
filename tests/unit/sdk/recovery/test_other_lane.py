"""A tool that is declared in another lane than its call was journaled in: nothing of it is fired, kept or undone as if
it were the tool of then, and it is finished once the tool is what it was.
"""

import logging
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest

from countersign import FilesAdapter, SQLiteAdapter, ToolRegistry, errors, resume, tool
from countersign.adapters.files_session import FilesSession
from tests.fakes.desk import Desk, failing_tool, make_runtime, notes_database, refund_tool, save_tool
from tests.fakes.running import fails
from tests.unit.sdk.full_disk import full, full_after


@contextmanager
def redeclared(desk: Desk) -> Any:
    """Another process of the same agent, whose modules define other tools."""
    registry = ToolRegistry()
    with make_runtime(desk.runtime.settings, desk.face, registry, desk.clock) as runtime:
        yield replace(desk, runtime=runtime, registry=registry)


def as_live(desk: Desk, name: str) -> Any:
    """A live tool of that name; calling its function outside its adapter would act all the same."""
    database = SQLiteAdapter(notes_database(desk.folder))

    def of_a_charge(charge_id: str, amount_cents: int) -> None:
        desk.done.append((name, charge_id, amount_cents))

    def of_an_order(order_id: str, amount_cents: int) -> None:
        desk.done.append((name, order_id, amount_cents))

    act = of_a_charge if name == "void" else of_an_order
    return tool(name, lane="live", adapter=database, registry=desk.registry)(act)


def test_what_was_staged_is_not_fired_by_a_tool_that_is_live_since(desk: Desk) -> None:
    desk.approved("t-1")
    with redeclared(desk) as later:
        as_live(later, "refund")
        for _ in range(2):
            (found,) = resume(later.runtime)
            assert (found.after, found.needs_attention, desk.done) == ("review", True, [])
        assert "tool 'refund' is live here, but transaction 't-1' was staged with it" in found.note
        assert "declare it staged" in found.note
    (found,) = resume(desk.runtime)
    assert (found.after, desk.done) == ("settled", [("refund", "o-t-1", 90_000)])


def test_nor_what_had_been_begun_nor_by_a_rerun(desk: Desk) -> None:
    """It may be called again with its key: by what it was."""
    with full_after(desk.runtime.journal, 1):
        desk.run((refund_tool(desk, idempotent=True), "o-1", 100), raises=errors.OutcomeUnknown)
    with redeclared(desk) as later:
        as_live(later, "refund")
        (found,) = resume(later.runtime)
        assert (found.before, found.after, found.needs_attention) == ("redeemed", "redeemed", True)
        with pytest.raises(errors.RegistrationError, match="is live here"), later.step():
            """For everything it does."""
        assert len(desk.done) == 1
    (found,) = resume(desk.runtime)
    assert (found.after, desk.done) == ("settled", [("refund", "o-1", 100)] * 2)


def test_a_live_tool_undoes_no_fired_effect(desk: Desk, charge: Any, caplog: Any, monkeypatch: Any) -> None:
    notify = failing_tool(desk, ZeroDivisionError(), failure_means="not_done", acts=False)
    with monkeypatch.context() as broken:
        broken.setattr(desk.runtime.journal.settlements, "begin_compensation", full)
        desk.run((charge, "o-1", 100), (notify, "o-1"), raises=errors.JournalError)
    with redeclared(desk) as later, caplog.at_level(logging.WARNING, "countersign"):
        charge_alone(later)
        failing_tool(later, ZeroDivisionError(), failure_means="not_done", acts=False)
        as_live(later, "void")
        (found,) = resume(later.runtime)
        assert (found.after, found.needs_attention) == ("unsettled", True)
        assert "tool 'void' is live here, but it compensates 'charge'" in caplog.text
        assert desk.done == [("charge", "o-1", 100)]
    (found,) = resume(desk.runtime)
    assert (found.after, desk.done[1:]) == ("settled", [("void", "c-o-1", 100)])


def charge_alone(desk: Desk) -> Any:
    @tool("charge", resource=("Order", "order_id"), registry=desk.registry)
    def charge(order_id: str, amount_cents: int) -> dict[str, str]:
        desk.done.append(("charge", order_id, amount_cents))
        return {}

    return charge


@pytest.mark.usefixtures("charge")  # reviewed
def test_no_live_tool_is_a_compensation(desk: Desk) -> None:
    """Found out before anything is asked, and not as it is needed."""
    with redeclared(desk) as later:
        as_live(later, "void")
        call, refused = (charge_alone(later), "o-1", 100), "'void' is live here, but the manifest of 'charge'"
        fails(later, errors.RegistrationError, call, match=refused)
        assert desk.done == []


def test_what_ran_live_stays_live(desk: Desk, files: FilesAdapter, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its remains cannot be located."""
    save = save_tool(desk, files)
    with monkeypatch.context() as failing:
        failing.setattr(FilesSession, "undo", full)
        desk.run((save, "a", "new"), (divmod, 1, 0), raises=errors.JournalError)
    with redeclared(desk) as later:
        staged: Any = tool("save", resource=("File", "name"), registry=later.registry)
        staged(lambda name, text: desk.done.append((name, text)))
        (found,) = resume(later.runtime)
        assert (found.needs_attention, desk.done) == (True, [])
        assert "tool 'save' ran live in this transaction and is staged here" in found.note
        assert "declare it live with its former adapter" in found.note
    (found,) = resume(desk.runtime)
    assert (found.after, desk.done) == ("ended", [])
