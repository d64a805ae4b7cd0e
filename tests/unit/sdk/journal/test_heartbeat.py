"""A lease is kept while its owner lives, even one invisible to others, and no longer."""

import logging
import threading
import time
from types import SimpleNamespace

import pytest

from countersign import JournalError, LeaseLost
from countersign.journal import Journal, Lease
from countersign.journal.leases import Heartbeat
from tests.fakes.desk import AGENT, Desk
from tests.unit.sdk.journal.test_forking import AS_EXPECTED, forked
from tests.unit.sdk.journals import POSTGRES

EVERY = 0.005
_PATIENCE_S = 60.0  # only a test that fails takes so long
TXN = "a" * 64


def until(true) -> None:
    end = time.monotonic() + _PATIENCE_S
    while not true():
        assert time.monotonic() < end
        time.sleep(0.005)


@pytest.fixture
def beats() -> SimpleNamespace:
    """What was renewed, and the error that renewing raises."""
    return SimpleNamespace(renewed=[], error=None)


@pytest.fixture
def heart(beats):
    def renew(lease: Lease) -> None:
        beats.renewed.append(lease.txn)
        if beats.error is not None:
            raise beats.error

    made = Heartbeat(renew, EVERY)
    yield made
    made.stop()


@pytest.fixture
def lease() -> Lease:
    return Lease("a", "h/1", 1)


def still(beats, heart: Heartbeat) -> None:
    """Nothing is renewed any more, and the thread is gone."""
    until(lambda: heart._thread is None)
    before = len(beats.renewed)
    time.sleep(5 * EVERY)
    assert len(beats.renewed) == before


def test_it_renews_every_lease_until_it_is_given_up(beats, heart: Heartbeat, lease: Lease) -> None:
    second = Lease("b", "h/2", 1)
    heart.begin(lease)
    heart.begin(second)
    assert heart._thread is not None and heart._thread.daemon, "it keeps no process alive"
    until(lambda: min(beats.renewed.count("a"), beats.renewed.count("b")) > 2)
    heart.end(lease)
    beats.renewed.clear()
    until(lambda: beats.renewed.count("b") > 2)
    assert beats.renewed.count("a") <= 1  # a beat that was under way
    heart.end(second)
    still(beats, heart)
    heart.begin(lease)  # and again
    until(lambda: "a" in beats.renewed)


def test_a_lease_that_was_dropped_is_renewed_no_more(beats, heart: Heartbeat) -> None:
    lease = Lease("a", "h/1", 1)
    heart.begin(lease)
    until(lambda: len(beats.renewed) > 2)
    del lease
    still(beats, heart)


def test_it_stops_after_a_takeover(beats, heart: Heartbeat, lease: Lease, caplog) -> None:
    beats.error = LeaseLost("transaction a was taken over")
    with caplog.at_level(logging.WARNING):
        heart.begin(lease)
        still(beats, heart)
    assert (beats.renewed, "was taken over" in caplog.text) == (["a"], True)


def test_a_lost_database_is_retried(beats, heart: Heartbeat, lease: Lease, caplog) -> None:
    beats.error = JournalError("there is no answer")
    with caplog.at_level(logging.WARNING):
        heart.begin(lease)
        until(lambda: len(beats.renewed) > 3)
    assert "could not be renewed: there is no answer" in caplog.text


def test_stopping_waits_for_a_beat_that_is_under_way(lease: Lease) -> None:
    begun, ended = threading.Event(), threading.Event()

    def renew(lease: Lease) -> None:
        begun.set()
        time.sleep(0.05)
        ended.set()

    heart = Heartbeat(renew, EVERY)
    heart.begin(lease)
    assert begun.wait(_PATIENCE_S)
    heart.stop()
    assert ended.is_set()


def test_a_forked_child_renews_nothing_of_its_parents(beats, heart: Heartbeat, lease: Lease) -> None:
    heart.begin(lease)
    until(lambda: beats.renewed)

    def child() -> None:
        before = len(beats.renewed)
        time.sleep(5 * EVERY)
        assert len(beats.renewed) == before
        own = Lease("b", "h/2", 1)
        heart.begin(own)
        until(lambda: "b" in beats.renewed)
        assert "a" not in beats.renewed[before:]

    assert forked(child) == AS_EXPECTED


@pytest.mark.parametrize("engine", ["sqlite", POSTGRES])
def test_a_fork_does_not_happen_in_the_middle_of_anothers_unit(place) -> None:
    """What another thread had locked would stay locked in the child for ever."""
    journal = Journal(place)
    inside, forking = threading.Event(), threading.Event()

    def hold() -> None:
        with journal.database.unit(durable=False):
            inside.set()
            forking.wait(0.1)

    holder = threading.Thread(target=hold)
    holder.start()
    assert inside.wait(_PATIENCE_S)

    def child() -> None:
        journal.transactions.open(txn=TXN, agent=AGENT, run_key="t-1", independent=False)

    assert forked(child) == AS_EXPECTED
    forking.set()
    holder.join()
    assert journal.transactions.newest_ids(9) == [TXN]
    journal.close()


# ------------------------------------------------------------------------------------------------ on a journal


def test_a_lease_of_a_failed_unit_is_not_held(desk: Desk) -> None:
    journal = desk.runtime.journal
    held = journal.leases._heartbeat._held
    journal.transactions.open(txn=TXN, agent=AGENT, run_key="t-1", independent=False)
    taken = []
    with pytest.raises(ValueError, match="no"), journal.database.unit(durable=False):
        taken.append(journal.leases.acquire(TXN))
        raise ValueError("no")
    assert list(held) == []
    second = journal.leases.acquire(TXN)
    assert isinstance(second, Lease) and list(held) == [second]
    journal.leases.release(second)
    assert list(held) == []
