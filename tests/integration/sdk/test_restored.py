"""An agent reports its earlier redemptions to a restored service before it continues."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from countersign import AlreadyRedeemed, EffectFailed, NotDone, Runtime, resume, transaction
from countersign.contract import PrivateKey, TxnState, txn_id
from countersign.contract.wire import TransactionView
from countersign.service.enforcement import issuer_of
from countersign.settings import Settings
from examples.local_service import free_port
from tests.fakes.desk import notes_database, write_key
from tests.fakes.listening import Listening
from tests.fakes.vault import Vault
from tests.integration.sdk.conftest import ROLE, Tools, reviewed_bundle


class Dead(BaseException):
    """Nothing is written to disk any more."""


class WatchedTools(Tools):
    """Tools that let something happen just before they act."""

    during: Callable[[], None] = staticmethod(lambda: None)

    def act(self, *what: Any) -> None:
        self.during()
        super().act(*what)


class Desk:
    """An agent, a service that can be lost, and what happened to the world."""

    def __init__(self, home: Path, vault: Vault) -> None:
        self.home, self.vault, self.port = home, vault, free_port()
        self.tools, self.key = WatchedTools(notes_database(home)), PrivateKey.generate()
        self.service: Listening
        reviewed_bundle(home)
        write_key(home / "agent.pem", self.key)

    @property
    def done(self) -> list[str]:
        """What the tools did: their names and orders or charges."""
        return [f"{what[0]} {what[1]}" for what in self.tools.done]

    def runtime(self, journal: str = "journal.db") -> Runtime:
        settings = Settings(
            url=self.service.url, agent="support", key_path=self.home / "agent.pem",
            journal_path=self.home / journal, retry_base_seconds=0.01, retry_max_seconds=0.02,
            allow_dev=True,
        )  # fmt: skip
        return Runtime(settings, registry=self.tools.registry)

    def start(self) -> None:
        self.service = Listening(self.vault.data, self.vault.bundle)
        self.service.url = f"http://127.0.0.1:{self.port}"
        self.service.__enter__()

    def stop(self) -> None:
        self.service.__exit__()

    def lose_since(self, copy: str) -> None:
        """The service stops, its database is lost, the copy is taken over, it runs again."""
        self.stop()
        self.vault.bring_back(copy)
        code, said = self.vault.verb("restored", "--reason", "the disk died")
        assert code == 0, said
        self.start()
        self.service.do(lambda world: world.operator("go-on", {"tool": None}))

    def save(self) -> str:
        """Stop for a moment and copy the database."""
        self.stop()
        copy = self.vault.save()
        self.start()
        return copy

    def refunded_and_lost(self) -> None:
        """What the copy does not know: one refund."""
        copy = self.save()
        refunded(self, "o-1")
        self.lose_since(copy)

    def view(self, key: str) -> TransactionView:
        with self.runtime("reader.db") as reader:
            return reader.client().view(txn_id(agent="support", run_key=key))


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    with Vault.opened(tmp_path / "data", tmp_path / "bundle", None, None) as vault:
        desk = Desk(tmp_path, vault)
        desk.start()
        agent = {"name": "support", "jwk": desk.key.public.jwk(), "roles": [ROLE]}
        desk.service.do(lambda world: world.operator("agent-enroll", agent))
        yield desk
        desk.stop()


def refunded(desk: Desk, key: str, journal: str = "journal.db") -> None:
    with desk.runtime(journal) as runtime, transaction(key, runtime=runtime):
        desk.tools.refund(key, 100)


def test_it_reports_what_it_redeemed_before_and_submits_then(desk: Desk) -> None:
    refunded(desk, "o-0")
    desk.refunded_and_lost()
    refunded(desk, "o-2")
    assert desk.done == ["refund o-0", "refund o-1", "refund o-2"]
    assert {desk.view(key).state for key in ("o-0", "o-1", "o-2")} == {TxnState.SETTLED}
    rows = desk.service.do(lambda world: world.log(txn_id(agent="support", run_key="o-1")))
    assert "redemption_recalled" in [kind for kind, _ in rows]


def test_resume_reports_without_unfinished_work_and_no_other_host_fires_again(desk: Desk) -> None:
    desk.refunded_and_lost()
    with desk.runtime() as runtime:
        assert resume(runtime) == []
        assert desk.view("o-1").state is TxnState.SETTLED
        assert runtime.journal.epochs.reported(issuer_of(runtime.settings)) == 2
        assert resume(runtime) == []
    with pytest.raises(AlreadyRedeemed):
        refunded(desk, "o-1", "another-host.db")
    assert desk.done == ["refund o-1"]


def test_a_call_firing_during_a_restore_is_reported_when_it_ends(desk: Desk) -> None:
    refunded(desk, "o-0")
    copy = desk.save()
    desk.tools.during = lambda: desk.lose_since(copy)
    refunded(desk, "o-1")
    assert (desk.done, desk.view("o-1").state) == (["refund o-0", "refund o-1"], TxnState.SETTLED)


def test_what_may_have_fired_when_its_process_died_is_unknown_to_the_service_too(desk: Desk) -> None:
    refunded(desk, "o-0")
    copy = desk.save()

    def die() -> None:
        raise Dead

    desk.tools.during = die
    with pytest.raises(Dead):
        refunded(desk, "o-1")
    desk.tools.during = lambda: None
    with closing(sqlite3.connect(desk.home / "journal.db", isolation_level=None)) as database:
        # as if the process had not come so far
        database.execute("DELETE FROM outbox WHERE outcome = 'unknown'")
        database.execute("UPDATE effects SET state = 'firing' WHERE state = 'unknown'")
    desk.lose_since(copy)
    refunded(desk, "o-2")
    assert desk.view("o-1").effects[0].state.value == "unknown"
    assert desk.view("o-1").attempt_id is not None


def test_what_was_taken_back_before_is_known_to_have_been(desk: Desk) -> None:
    copy = desk.save()
    failing = pytest.raises(EffectFailed, match="notify")
    with desk.runtime() as runtime, failing, transaction("o-1", runtime=runtime):
        desk.tools.error = NotDone("the mailbox is full")
        desk.tools.charge("o-1", 100)
        desk.tools.notify("o-1")
    assert desk.done == ["charge o-1", "void c-o-1"]
    desk.lose_since(copy)
    with desk.runtime() as runtime:
        resume(runtime)
    seen = desk.view("o-1")
    assert [one.state.value for one in seen.effects] == ["compensated", "failed"]
    assert seen.state is TxnState.SETTLED


def test_a_receipt_with_an_unpublished_key_is_left_to_people_and_blocks_nothing(desk: Desk) -> None:
    copy = desk.save()
    refunded(desk, "o-1")
    assert desk.vault.verb("rotate-keys", "--compromised")[0] == 0
    desk.lose_since(copy)
    refunded(desk, "o-2")
    with desk.runtime() as runtime:
        rows = runtime.journal.database.rows("SELECT refused FROM outbox WHERE refused IS NOT NULL")
        assert ["bad_token" in row["refused"] for row in rows] == [True]
