"""What each verb of the SDK does with a run key that the service has archived: it ends, and says what is so."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from countersign import (
    AlreadyRedeemed,
    OutcomeUnknown,
    ReviewPending,
    Runtime,
    ServiceRefused,
    resume,
    transaction,
)
from countersign.concurrency import run_sync
from countersign.contract import txn_id
from countersign.errors import EffectFailed, MisuseError
from countersign.journal import LocalState, LocalTxn, TransactionRecord
from countersign.recovery.prior_run import close, withdraw
from countersign.recovery.recovery import RecoveryResult
from policy_service.storage.archive_tables import archived_transaction
from policy_service.workflow.expiry.archive import Archiver
from tests.fakes.vault import Vault
from tests.fakes.world import Visitor, World
from tests.integration.sdk.conftest import ROLE
from tests.integration.sdk.test_restored import Desk

LARGE = 90_000  # finance is asked


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Desk]:
    """One service for all of them; each has its own keys and journals."""
    home = tmp_path_factory.mktemp("desk")
    with Vault.opened(home / "data", home / "bundle", None, None) as vault:
        desk = Desk(home, vault)
        desk.start()
        agent = {"name": "support", "jwk": desk.key.public.jwk(), "roles": [ROLE]}
        desk.service.do(lambda world: world.operator("agent-enroll", agent))
        yield desk
        desk.stop()


@pytest.fixture
def mine(desk: Desk, key: str) -> Iterator[Runtime]:
    """The host whose journal has the run; the others finish it elsewhere."""
    with desk.runtime(f"{key}.db") as runtime:
        yield runtime


def person(desk: Desk, act: Callable[[Visitor], Awaitable[Any]]) -> None:
    """Maya does this."""

    async def there(world: World) -> None:
        done = await act(await world.person("maya"))
        assert done.status_code == 200, done.text

    desk.service.do(there)


def decided(desk: Desk, key: str, verdict: str) -> None:
    view = desk.view(key).model_dump(mode="json")
    person(desk, lambda maya: maya.vote(view, verdict, reason="I looked at it"))


def settled(desk: Desk, key: str, kind: str, answer: str) -> None:
    async def act(maya: Visitor) -> Any:
        return await maya.settle(await maya.task({"txn": txn(key)}, kind), answer)

    person(desk, act)


def txn(key: str) -> str:
    return txn_id(agent="support", run_key=key)


def archived(desk: Desk, key: str) -> None:
    """Forty days later."""

    async def there(world: World) -> None:
        ctx = world.service.ctx
        later = ctx.settings.model_copy(update={"archive_after_days": 39})
        ctx = replace(ctx, settings=later, clock=lambda: world.clock() + timedelta(days=40))
        await Archiver(ctx, "test").run()
        row = await world.service.db.read(lambda conn: archived_transaction(conn, txn(key)))
        assert row is not None, "it stays in the database"

    desk.service.do(there)


def parked(desk: Desk, key: str, runtime: Runtime) -> None:
    with pytest.raises(ReviewPending):
        refunded(desk, key, runtime)


def refunded(desk: Desk, key: str, runtime: Runtime) -> None:
    with transaction(key, runtime=runtime):
        desk.tools.refund(key, LARGE)


def fired_elsewhere(desk: Desk, key: str, runtime: Runtime) -> None:
    """Parked here, approved, fired by another host under its own attempt, and archived."""
    parked(desk, key, runtime)
    decided(desk, key, "approve")
    with desk.runtime(f"{key}-elsewhere.db") as other:
        refunded(desk, key, other)
    archived(desk, key)


def denied(desk: Desk, key: str, runtime: Runtime) -> None:
    parked(desk, key, runtime)
    decided(desk, key, "deny")
    archived(desk, key)


def record(runtime: Runtime, key: str) -> TransactionRecord:
    return runtime.journal.transactions.require(txn(key))


def resumed(runtime: Runtime) -> RecoveryResult:
    (found,) = resume(runtime)
    return found


def count(desk: Desk, key: str) -> int:
    return desk.done.count(f"refund {key}")


# -- redeemed by another host ----------------------------------------------------------------------------------


def test_withdraw_reports_that_it_fired(desk: Desk, mine: Runtime, key: str) -> None:
    fired_elsewhere(desk, key, mine)
    with pytest.raises(AlreadyRedeemed, match=r"outcome fired.*archived") as refused:
        run_sync(withdraw(mine.engine(mine.sync_executor()), key))
    assert refused.value.finished
    assert record(mine, key).state is LocalTxn.REVIEW, "resume ends it"


def test_resume_ends_a_parked_list(desk: Desk, mine: Runtime, key: str) -> None:
    fired_elsewhere(desk, key, mine)
    found = resumed(mine)
    assert (found.after, found.needs_attention) == (LocalTxn.ENDED, False)
    assert "outcome fired" in found.note and "archived" in found.note
    assert (resume(mine), count(desk, key)) == ([], 1)


def test_a_rerun_of_a_parked_list_fires_nothing(desk: Desk, mine: Runtime, key: str) -> None:
    fired_elsewhere(desk, key, mine)
    for _ in range(2):
        with pytest.raises(AlreadyRedeemed, match="outcome fired"):
            refunded(desk, key, mine)
    assert count(desk, key) == 1


# -- not redeemed ----------------------------------------------------------------------------------------------


def test_withdraw_finds_nothing_done(desk: Desk, mine: Runtime, key: str) -> None:
    denied(desk, key, mine)
    assert run_sync(withdraw(mine.engine(mine.sync_executor()), key)) is None
    assert record(mine, key).state is LocalTxn.ENDED


def test_resume_ends_a_denied_list_and_does_not_advise_to_run_it_again(
    desk: Desk, mine: Runtime, key: str
) -> None:
    """Its submission arrived, and a rerun under this key would be refused."""
    denied(desk, key, mine)
    found = resumed(mine)
    assert found.after is LocalTxn.ENDED
    assert "run it again" not in found.note and "another run key" in found.note
    assert resume(mine) == []


def test_a_rerun_of_a_denied_list_names_the_way_out(desk: Desk, mine: Runtime, key: str) -> None:
    denied(desk, key, mine)
    for _ in range(2):
        with pytest.raises(ServiceRefused, match="another run key") as refused:
            refunded(desk, key, mine)
        assert refused.value.problem_code == "illegal_state"
    assert count(desk, key) == 0


# -- redeemed by this host, and settled by people --------------------------------------------------------------


def torn(desk: Desk, key: str, runtime: Runtime) -> None:
    """A charge that fired, and a notice with an unknown outcome."""
    desk.tools.error = TimeoutError("no answer")
    with pytest.raises(OutcomeUnknown), transaction(key, runtime=runtime):
        desk.tools.charge(key, 100)
        desk.tools.notify(key)
    desk.tools.error = None


async def overdue(world: World) -> None:
    """A sweep that finds what no one compensated for a week."""
    world.clock.pass_(days=7)
    await world.sweep()
    world.clock.pass_(days=-7)


def states(runtime: Runtime, key: str) -> list[LocalState]:
    return [row.state for row in runtime.journal.transactions.effects(record(runtime, key))]


def test_resume_takes_over_what_a_person_settled(desk: Desk, mine: Runtime, key: str) -> None:
    torn(desk, key, mine)
    settled(desk, key, "unknown", "fired")
    archived(desk, key)
    found = resumed(mine)
    assert found.after is LocalTxn.SETTLED, found.note
    assert states(mine, key) == [LocalState.FIRED, LocalState.FIRED]
    assert resume(mine) == []


def test_a_compensation_that_is_refused_is_left_to_a_person(desk: Desk, mine: Runtime, key: str) -> None:
    """People left the charge as it is, but the archive does not tell. So a person closes the run here."""
    torn(desk, key, mine)
    settled(desk, key, "unknown", "not_fired")
    desk.service.do(overdue)
    settled(desk, key, "compensation_due", "left_standing")
    archived(desk, key)
    for _ in range(2):
        found = resumed(mine)
        assert (found.after, found.needs_attention) == (LocalTxn.UNSETTLED, True)
        assert "archived" in found.note and "journal close" in found.note
    assert states(mine, key) == [LocalState.COMPENSATION_FAILED, LocalState.FAILED]
    assert f"void c-{key}" not in desk.done
    with pytest.raises(EffectFailed, match="archived"), transaction(key, runtime=mine):
        desk.tools.charge(key, 100)
        desk.tools.notify(key)
    engine = mine.engine(mine.sync_executor())
    assert close(engine, txn(key), by="Maya", why="people left it").state is LocalTxn.CLOSED
    assert resume(mine) == []


def test_what_people_settle_in_the_service_is_still_not_closed_by_hand(
    desk: Desk, mine: Runtime, key: str
) -> None:
    torn(desk, key, mine)
    with pytest.raises(MisuseError, match="people settle that in the service"):
        close(mine.engine(mine.sync_executor()), txn(key), by="Maya", why="bored")
