"""A registered step with live work is run again by `resume`, once people have approved it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest

from countersign import FilesAdapter, Runtime, errors, resume, resume_async, run_transaction
from countersign import step as registered
from countersign.journal.verification import verify
from countersign.recovery.recovery import RecoveryResult
from tests.fakes.desk import Desk, save_tool

PIN = "0000-4711-very-secret"


class Shop:
    """A step that writes a file live and stages a refund; how often it ran."""

    def __init__(self, desk: Desk, files: FilesAdapter, refund: Callable[..., Any]) -> None:
        self.desk, self.save, self.refund = desk, save_tool(desk, files), refund
        self.ran: list[Any] = []
        self.list: Callable[[str, int], Any] = refund

        @registered("restock", secret=["pin"], registry=desk.registry)
        def restock(txn: Any, order: str, cents: int, pin: str = "") -> None:
            self.ran.append((order, cents, pin))
            self.save("a", order)
            self.list(order, cents)

        self.step = restock

    def run(self, **args: Any) -> None:
        bound = partial(self.step, **({"order": "o-1", "cents": 90_000} | args))
        run_transaction(bound, key="t-1", runtime=self.desk.runtime)

    def asked(self, **args: Any) -> str:
        with pytest.raises(errors.ReviewPending) as pending:
            self.run(**args)
        assert not self.file.exists()
        return str(pending.value.txn)

    @property
    def file(self) -> Any:
        return self.desk.folder / "root" / "a"


@pytest.fixture
def shop(desk: Desk, files: FilesAdapter, refund: Callable[..., Any]) -> Shop:
    return Shop(desk, files, refund)


@pytest.fixture
def later(desk: Desk) -> Iterator[Runtime]:
    """Another process of the same agent."""
    with desk.another_process() as runtime:
        yield runtime


def one(found: list[RecoveryResult]) -> RecoveryResult:
    assert len(found) == 1
    return found[0]


@pytest.mark.parametrize("awaited", [False, True], ids=["thread", "loop"])
def test_an_approved_step_is_finished_without_its_program(
    desk: Desk, shop: Shop, later: Runtime, awaited: bool
) -> None:
    txn = shop.asked()
    waiting = one(resume(later))
    assert (waiting.waiting, len(shop.ran)) == (True, 1), "while people decide it is not run"
    desk.service.approve(txn)
    found = one(asyncio.run(resume_async(later)) if awaited else resume(later))
    assert (found.after, found.note) == ("settled", "fired")
    assert (len(desk.done), shop.file.read_text(), shop.ran) == (1, "o-1", [("o-1", 90_000, "")] * 2)
    shop.run()
    assert (resume(later), len(desk.done)) == ([], 1), "its program finds it done"


async def test_an_async_step_is_finished_too(
    desk: Desk, files: FilesAdapter, refund: Callable[..., Any], later: Runtime
) -> None:
    save, ran = save_tool(desk, files), []

    @registered("repair", registry=desk.registry)
    async def repair(txn: Any, order: str) -> str:
        ran.append(order)
        save("a", order)
        refund(order, 90_000)
        return order

    with pytest.raises(errors.ReviewPending) as pending:
        await run_transaction(partial(repair, order="o-1"), key="t-1", runtime=desk.runtime)
    desk.service.approve(str(pending.value.txn))
    assert one(await resume_async(later)).note == "fired"
    assert (ran, len(desk.done)) == (["o-1"] * 2, 1)


def test_a_step_that_is_not_registered_fires_nothing_and_says_so(
    desk: Desk, shop: Shop, later: Runtime
) -> None:
    desk.service.approve(shop.asked())
    later.registry._steps.clear()
    found = one(resume(later))
    assert found.needs_attention and found.after == "ready"
    assert "step 'restock' is not registered here" in found.note and "--tools" in found.note
    assert (desk.done, shop.file.exists(), len(shop.ran)) == ([], False, 1)


@pytest.mark.parametrize("other", ["another call", "one more", "none"])
def test_another_list_fires_nothing_and_says_so(desk: Desk, shop: Shop, later: Runtime, other: str) -> None:
    desk.service.approve(shop.asked())
    lists: dict[str, Callable[[str, int], Any]] = {
        "another call": lambda order, cents: shop.refund(order, cents - 1),
        "one more": lambda order, cents: (shop.refund(order, cents), shop.refund("o-2", 1)),
        "none": lambda order, cents: None,
    }
    revisions = desk.service.latest(shop.desk.runtime.journal.transactions.find("t-1")[0].txn).rev
    before, shop.list = shop.list, lists[other]
    found = one(resume(later))
    assert "stages another list than the approved one: call" in found.note
    assert (one(resume(later)).note, len(shop.ran)) == (found.note, 2), "this process does not run it again"
    assert (desk.done, shop.file.exists()) == ([], False)
    assert desk.service.latest(found.txn).rev == revisions, "nothing was submitted"
    shop.list = before
    shop.run()
    assert (len(desk.done), shop.file.read_text()) == (1, "o-1"), "its own program still can"


def test_a_step_that_raises_fires_nothing(desk: Desk, shop: Shop, later: Runtime) -> None:
    desk.service.approve(shop.asked())

    def broken(order: str, cents: int) -> None:
        raise ValueError("no stock")

    shop.list = broken
    found = one(resume(later))
    assert "ValueError" in found.note and found.needs_attention
    assert desk.runtime.journal.transactions.require(found.txn).note == found.note
    assert (one(resume(later)).note, len(shop.ran)) == (found.note, 2), (
        "nor is it run at every look of a worker"
    )
    assert (desk.done, shop.file.exists()) == ([], False)


def test_a_passing_fault_is_tried_again(desk: Desk, shop: Shop, later: Runtime) -> None:
    desk.service.approve(shop.asked())

    def away(order: str, cents: int) -> None:
        raise errors.ServiceUnavailable("GET /v1/transactions", "it is away")

    usual, shop.list = shop.list, away
    assert one(resume(later)).needs_attention and len(shop.ran) == 2
    shop.list = usual
    assert (one(resume(later)).note, len(shop.ran), len(desk.done)) == ("fired", 3, 1)


def test_the_last_run_counts_and_an_equal_one_writes_nothing(desk: Desk, shop: Shop, later: Runtime) -> None:
    shop.asked()
    lines = "SELECT count(*) AS n FROM chain WHERE kind = 'step'"
    shop.asked()
    assert desk.runtime.journal.database.rows(lines)[0]["n"] == 1
    txn = shop.asked(cents=80_000)
    assert desk.runtime.journal.database.rows(lines)[0]["n"] == 2
    desk.service.approve(txn)
    resume(later)
    assert shop.ran[-1] == ("o-1", 80_000, "")


def test_secret_arguments_are_sealed_and_return(desk: Desk, shop: Shop, later: Runtime) -> None:
    desk.service.approve(shop.asked(pin=PIN))
    for place in desk.folder.rglob("journal.db*"):
        assert PIN.encode() not in place.read_bytes() or place.suffix == ".key"
    resume(later)
    assert shop.ran[-1] == ("o-1", 90_000, PIN)
    assert verify(desk.runtime.settings.journal_path).sound


@pytest.mark.tampers
def test_a_changed_record_is_not_run(desk: Desk, shop: Shop, later: Runtime) -> None:
    desk.service.approve(shop.asked())
    with desk.runtime.journal.database.unit(durable=False) as unit:
        unit.execute(
            "UPDATE meta SET value = ? WHERE name LIKE 'step:%'",
            (json.dumps(["restock", '{"order":"o-9"}']),),
        )
    found = one(resume(later))
    assert found.needs_attention and (desk.done, len(shop.ran)) == ([], 1)


def test_arguments_are_bound_by_name_and_are_json(desk: Desk, shop: Shop) -> None:
    for bound, why in (
        (partial(shop.step, "o-1", cents=1), errors.MisuseError),
        (partial(shop.step, order="o-1", cents=object()), errors.NotStageable),
        (partial(shop.step, order="o-1"), errors.MisuseError),
    ):
        with pytest.raises(why, match=r"restock|by name|with functools.partial"):
            run_transaction(bound, key="t-2", runtime=desk.runtime)
    assert desk.runtime.journal.transactions.find("t-2") == []


def test_registration_refusals(desk: Desk, shop: Shop) -> None:
    def other(txn: Any) -> None: ...
    def none() -> None: ...

    for name, fn, why in (
        ("restock", other, "already"),
        ("", other, "1 to 200"),
        ("x", none, "transaction first"),
    ):
        with pytest.raises(errors.RegistrationError, match=why):
            registered(name, registry=desk.registry)(fn)
