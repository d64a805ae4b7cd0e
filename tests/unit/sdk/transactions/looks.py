"""Somebody who acts while an agent waits."""

from typing import Any

from countersign import run_transaction
from countersign.contract import txn_id
from tests.fakes.desk import AGENT, Desk

TXN = txn_id(agent=AGENT, run_key="t-1")


def on_view(desk: Desk, act: Any) -> None:
    """Somebody acts while the agent is waiting: after its first look at the transaction."""
    desk.face.faults[f"/v1/transactions/{TXN}"] = [act, *[lambda: None] * 49]
    wait = desk.service.wait
    desk.service.wait = lambda txn, seconds: wait(txn, 0)  # type: ignore[method-assign]


def waited(desk: Desk, step: Any, wait: float = 60) -> Any:
    """Run the step under the key `t-1`, and wait so many seconds for people."""
    return run_transaction(step, key="t-1", wait=wait, runtime=desk.runtime)
