"""fork() and pickle copy memory, a backup copies a journal: none makes a second owner of a transaction or of a key."""

import copy
import os
import pickle
import shutil
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from countersign import OutsideTransaction, errors, resume, transaction
from countersign.journal.database import Database
from countersign.journal.forks import _ForkHandlers
from countersign.journal.leases import Heartbeat
from countersign.settings import load_key
from tests.fakes.desk import Desk, make_runtime
from tests.fakes.running import fails, run
from tests.unit.sdk.journals import BOTH

AS_EXPECTED = 0


def forked(child) -> int:
    """Fork, run this in the child, and answer how it ended."""
    pid = os.fork()
    if pid == 0:
        code = 9
        try:
            child()
            code = AS_EXPECTED
        except SystemExit as ended:
            code = int(ended.code or 0)
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def test_a_forked_child_calls_no_tool_of_its_parents_transaction(desk: Desk, refund) -> None:

    def child() -> None:
        with pytest.raises(OutsideTransaction, match="process"):
            refund("o-2", 200)

    with desk.step() as txn:
        refund("o-1", 100)
        assert forked(child) == AS_EXPECTED
    assert (desk.done, len(txn.effects), txn.state) == ([("refund", "o-1", 100)], 1, "settled")


LEAVING = {"by reaching its end": None, "by sys.exit": SystemExit(0), "by an exception": ValueError("no")}


@pytest.mark.parametrize("engine", BOTH)
@pytest.mark.parametrize("error", LEAVING.values(), ids=LEAVING)
def test_a_forked_child_ends_no_block(desk: Desk, refund, live_notes, error: BaseException | None) -> None:
    reported: BaseException | None = None
    child = False
    try:
        with desk.step() as txn:
            live_notes.note("o-1", "refunded")
            refund("o-1", 100)
            pid = os.fork()
            child = pid == 0
            if child and error is not None:
                raise error
            if not child:
                os.waitpid(pid, 0)
    except BaseException as raised:
        reported = raised
        if not child:
            raise
    finally:
        if child:
            right = reported is error if error is not None else isinstance(reported, OutsideTransaction)
            os._exit(AS_EXPECTED if right and desk.done == [] else 1)
    assert (desk.done, txn.state) == ([("refund", "o-1", 100)], "settled")
    assert live_notes.written() == [("o-1", "refunded")]


@pytest.mark.parametrize("engine", BOTH)
def test_a_forked_child_commits_a_transaction_of_its_own(desk: Desk, refund) -> None:
    """It has the key and a journal connection of its own; the lease in the journal keeps the two apart."""
    run(desk, (refund, "o-1", 100))

    def child() -> None:
        run(desk, (refund, "o-2", 200), key="t-2")
        assert desk.done[1:] == [("refund", "o-2", 200)]

    assert forked(child) == AS_EXPECTED
    states = {key: desk.runtime.journal.transactions.find(key)[0].state.value for key in ("t-1", "t-2")}
    assert states == {"t-1": "settled", "t-2": "settled"}


COPIES = {"pickled": pickle.dumps, "copied": copy.deepcopy}


@pytest.mark.parametrize("make", COPIES.values(), ids=COPIES)
def test_neither_a_key_nor_what_holds_one_is_copied(desk: Desk, make) -> None:
    key = load_key(desk.runtime.settings.key_path)
    with desk.step() as txn:
        for holder in (key, desk.runtime, desk.runtime.journal, txn):
            with pytest.raises(TypeError, match=r"private key|cannot pickle"):
                make(holder)


class _Locked:
    """One thing with a lock, that says in which order it was taken."""

    def __init__(self, order: int, taken: list[int]) -> None:
        self.fork_order, self._taken = order, taken

    def before_fork(self) -> None:
        self._taken.append(self.fork_order)

    def after_fork_in_parent(self) -> None: ...
    def after_fork_in_child(self) -> None: ...


def test_a_fork_takes_locks_in_the_order_in_which_they_lock_each_other() -> None:
    """A unit that ends a lease holds its database, and then asks for the heartbeat: never the other way round."""
    taken: list[int] = []
    forking = _ForkHandlers()
    kept = [_Locked(order, taken) for order in (1, 0, 1, 0, 1, 1, 0)]
    for one in kept:
        forking.known.add(one)
    forking.before()
    forking.in_parent()
    assert taken == sorted(taken) and len(taken) == len(kept)
    assert (Database.fork_order, Heartbeat.fork_order) == (0, 1)


# ------------------------------------------------------------------------------------ a journal that was copied

LARGE = 90_000


def copied(desk: Desk, name: str) -> Path:
    """The journal as it is now, taken elsewhere: a snapshot, a backup, a second host."""
    desk.runtime.close()
    path = desk.runtime.settings.journal_path
    other = path.with_name(name)
    for part in path.parent.glob(f"{path.name}*"):
        shutil.copy2(part, path.parent / part.name.replace(path.name, name))
    return other


@contextmanager
def host(desk: Desk, journal: Path):
    settings = replace(desk.runtime.settings, journal_path=journal)
    with make_runtime(settings, desk.face, desk.registry, desk.clock) as runtime:
        yield runtime


def test_a_copy_from_before_the_redemption_finds_it_spent(desk: Desk, refund) -> None:
    """Both hosts staged the same list; the attempt is in both journals, and the second learns the outcome."""
    pending = fails(desk, errors.ReviewPending, (refund, "o-1", LARGE))
    desk.service.approve(pending.error.txn)
    copy = copied(desk, "copy.db")
    assert [one.after for one in resume(desk.runtime)] == ["settled"]
    with host(desk, copy) as second:
        resume(second)
        with pytest.raises(errors.AlreadyRedeemed, match="fired"), transaction("t-1", runtime=second):
            refund("o-1", LARGE)
    assert desk.done == [("refund", "o-1", LARGE)]


def test_a_copy_fires_nothing_that_the_first_has_reported(desk: Desk, refund) -> None:
    """Taken between the redemption and the fire: the copy has to request more time, and gets the outcome instead."""
    desk.face.faults["/v1/transactions"] = ["lost_answer"] * 10
    fails(desk, Exception, (refund, "o-1", 100), match="Nothing was fired")
    desk.face.faults.clear()
    copy = copied(desk, "copy.db")
    assert [one.after for one in resume(desk.runtime)] == ["settled"]
    assert desk.done == [("refund", "o-1", 100)]
    with host(desk, copy) as second:
        resume(second)
        resume(second)
    assert desk.done == [("refund", "o-1", 100)]
