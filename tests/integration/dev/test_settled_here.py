"""A person settles an unknown outcome, and `policy-service dev` goes on from there, as after an approval."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from examples.person import Person
from tests.integration.dev.test_first_five_minutes import SIGN_IN, sits

IN_DOUBT = '''
from countersign import tool, transaction


@tool("void", resource=("Charge", "charge_id"), groups=["read"])
def void(charge_id: str) -> None:
    """Take a charge back."""
    print("VOIDING", charge_id)


@tool("charge", resource=("Order", "order_id"), groups=["read"],
      compensate="void", compensation_map={"charge_id": "result:/charge_id"})
def charge(order_id: str) -> dict[str, str]:
    """Charge an order."""
    print("CHARGING", order_id)
    return {"charge_id": "ch_1"}


@tool("post", resource=("Order", "order_id"), groups=["read"])
def post(order_id: str) -> str:
    """Send it off."""
    raise ValueError("timed out")


if __name__ == "__main__":
    with transaction(key="order-1"):
        charge("o-1")
        sent = post("o-1")
    print("sent:", sent.result)
'''


@pytest.mark.long
def test_a_person_is_asked_when_no_run_can_compensate(tmp_path: Path) -> None:
    in_a_moment = {"COUNTERSIGN_OUTCOME_GRACE_S": "1", "COUNTERSIGN_SWEEP_S": "0.2"}  # not after a minute
    with sits(tmp_path, IN_DOUBT, **in_a_moment) as sitting:
        link = sitting.waits_for(SIGN_IN)[1]
        asked = r"dev \| post: we do not know whether this fired; settle it here: (\S+)\n"
        task = sitting.waits_for(rf"(?s)(?=.*ended with exit status 1)(?=.*{asked})")[1]
        sitting.saves("import nothing_like_this\n" + IN_DOUBT)
        sitting.waits_for(r"my_agent\.py was not run:")
        with Person(task.partition("/tasks")[0]) as me:
            me.sign_in(link)
            me.settle(task, "not_fired", "the log of the parcel service says so")
        sitting.waits_for(r"countersign resume --tools my_agent\.py")
        due = sitting.waits_for(
            r"dev \| charge: this fired and has not been undone; settle it here: (\S+)\n"
            r"dev \|     \(its agent's next run compensates it and closes this task; settle it only if no run can\)\n"
        )[1]
        assert re.search(r"/tasks/task_\w+$", due) and due != task
        sitting.saves(IN_DOUBT)
        sitting.waits_for(r"(?s)(?=.*VOIDING ch_1)(?=.*dev \| order-1: charge was compensated\n)")
    assert (sitting.said.count("CHARGING"), sitting.said.count("VOIDING")) == (1, 1)
    assert sitting.said.count("has not been undone") == 1
