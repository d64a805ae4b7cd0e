"""A rerun of an archived run key fires nothing, wherever the archiving was killed."""

from __future__ import annotations

import json
import signal

import pytest

from countersign import AlreadyRedeemed
from countersign.contract import txn_id
from tests.fakes.archiving import STEPS, archived
from tests.fakes.log_check import faults_of_log
from tests.integration.sdk.test_restored import Desk, desk, refunded

__all__ = ["desk"]


EVERY_DAY = {"after the sync", "before the commit"}


@pytest.mark.parametrize(
    "step", [step if step in EVERY_DAY else pytest.param(step, marks=pytest.mark.long) for step in STEPS]
)
def test_no_kill_lets_an_archived_run_key_fire_again(desk: Desk, step: str) -> None:
    refunded(desk, "o-1")
    desk.stop()
    folders = desk.vault.data, desk.vault.bundle
    assert archived(*folders, step) == -signal.SIGKILL
    rerun(desk, f"{step}.db")
    assert archived(*folders) == 0
    rerun(desk, "later.db")
    (file,) = (desk.vault.data / "archive").iterdir()
    whole = [json.loads(line) for line in file.read_bytes().splitlines() if line.endswith(b"}")]
    assert {record["txn"] for record in whole} == {txn_id(agent="support", run_key="o-1")}
    assert len(whole) == (2 if step in {"before the sync", "after the sync", "before the commit"} else 1)
    desk.start()
    assert "rows_archived" in [kind for kind, _ in logged(desk)]
    assert desk.service.do(lambda world: world.service.db.read(faults_of_log)) == []


def rerun(desk: Desk, journal: str) -> None:
    """Another host runs the same key; the tool was called once in all."""
    desk.start()
    with pytest.raises(AlreadyRedeemed, match="fired"):
        refunded(desk, "o-1", journal)
    desk.stop()
    assert desk.done == ["refund o-1"]


def logged(desk: Desk) -> list[tuple[str, object]]:
    return desk.service.do(lambda world: world.log(txn_id(agent="support", run_key="o-1")))
