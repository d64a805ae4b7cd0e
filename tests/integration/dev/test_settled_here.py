"""A person settles what nobody else can tell, and `policy-service dev` goes on from there, as after an approval."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from examples.person import Person
from tests.fakes.sitting import Sitting

AGENT = '''
import os
from countersign import tool, transaction


@tool("void", resource=("Charge", "charge_id"), groups=["read"])
def void(charge_id: str) -> None:
    """Take a charge back."""
    print("VOIDING", charge_id)


@tool(
    "charge",
    resource=("Order", "order_id"),
    groups=["read"],
    compensate="void",
    compensation_map={"charge_id": "result:/charge_id"},
)
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
    print(f"sent: {sent.result}")
'''
A_WRITE = AGENT.replace('"charge_id"), groups=["read"])', '"charge_id"))')
IN_A_MOMENT = {"COUNTERSIGN_OUTCOME_GRACE_S": "1", "COUNTERSIGN_SWEEP_S": "0.2"}
"""What fired and stands is told to people almost at once, not after a minute."""


def asked(sitting: Sitting) -> tuple[str, str]:
    """A fresh link, and the task that only a person can settle."""
    link = sitting.waits_for(r"sign in as \S+: (\S+)")[1]
    task = r"dev \| post: we do not know whether this fired; settle it here: (\S+)\n"
    return link, sitting.waits_for(rf"(?s)(?=.*ended with exit status 1)(?=.*{task})")[1]


def settles(link: str, task: str, answer: str, result: str = "") -> None:
    """The developer in their browser."""
    with Person(task.partition("/tasks")[0]) as me:
        me.sign_in(link)
        me.settle(task, answer, "the log of the parcel service says so", result=result)


@pytest.mark.long  # each of these starts a service, a person and a script
def test_what_fired_beside_what_did_not_is_taken_back_once_a_person_has_settled_it(tmp_path: Path) -> None:
    """A person who is asked to take back what the agent takes back itself does it twice."""
    (tmp_path / "my_agent.py").write_text(AGENT)
    with Sitting(tmp_path, **IN_A_MOMENT) as sitting:
        settles(*asked(sitting), "not_fired")
        sitting.waits_for(r"order-1: settled; running my_agent\.py again")
        sitting.waits_for(r"(?s)(?=.*VOIDING ch_1)(?=.*dev \| order-1: charge was taken back\n)")
        sitting.waits_for(r"my_agent\.py ended with exit status 1")
    assert (sitting.said.count("CHARGING"), sitting.said.count("VOIDING")) == (1, 1)
    assert "nobody has taken it back" not in sitting.said


@pytest.mark.long
def test_a_run_goes_on_with_what_a_person_says_has_fired(tmp_path: Path) -> None:
    (tmp_path / "my_agent.py").write_text(AGENT)
    with Sitting(tmp_path) as sitting:
        settles(*asked(sitting), "fired", '"by air"')
        sitting.waits_for(r"(?s)(?=.*order-1: settled; running my_agent\.py again)(?=.*\nsent: by air\n)")
    assert (sitting.said.count("CHARGING"), sitting.said.count("VOIDING")) == (1, 0)


@pytest.mark.long
def test_a_step_without_a_key_is_resumed_because_another_run_would_do_it_again(tmp_path: Path) -> None:
    (tmp_path / "my_agent.py").write_text(AGENT.replace('key="order-1"', ""))
    with Sitting(tmp_path) as sitting:
        settles(*asked(sitting), "not_fired")
        sitting.waits_for(
            r"settled, but its transaction has no key, so another run would do it all again; write"
        )
        sitting.waits_for(r"countersign resume --tools my_agent\.py")
        sitting.waits_for("VOIDING ch_1")
    assert (sitting.said.count("CHARGING"), sitting.said.count("VOIDING")) == (1, 1)


@pytest.mark.long
def test_what_is_taken_back_by_leave_of_a_person_is_taken_back_once_they_gave_it(tmp_path: Path) -> None:
    (tmp_path / "my_agent.py").write_text(A_WRITE)
    with Sitting(tmp_path, **IN_A_MOMENT) as sitting:
        link, task = asked(sitting)
        settles(link, task, "not_fired")
        review = r"(?s)(?=.*exit status 1)(?=.*void waits for developers; decide here: (\S+))"
        waits = sitting.waits_for(review)[1]
        sitting.types("l")
        sitting.approves(sitting.waits_for(r"sign in as \S+: (\S+)")[1], waits)
        sitting.waits_for(r"order-1: approved; running my_agent\.py again")
        sitting.waits_for(r"(?s)(?=.*VOIDING ch_1)(?=.*dev \| order-1: charge was taken back\n)")
    assert (sitting.said.count("CHARGING"), sitting.said.count("VOIDING")) == (1, 1)
    assert "nobody has taken it back" not in sitting.said


@pytest.mark.long
def test_where_no_run_can_take_it_back_a_person_is_asked_and_told_what_else_would(tmp_path: Path) -> None:
    (tmp_path / "my_agent.py").write_text(AGENT)
    with Sitting(tmp_path, **IN_A_MOMENT) as sitting:
        link, task = asked(sitting)
        sitting.saves("import nothing_like_this\n" + AGENT)
        sitting.waits_for(r"my_agent\.py was not run:")
        settles(link, task, "not_fired")
        sitting.waits_for(r"countersign resume --tools my_agent\.py")
        due = sitting.waits_for(
            r"dev \| charge: this fired, and nobody has taken it back; settle it here: (\S+)\n"
            r"dev \|     \(its agent's next run takes it back and closes this; settle it only if none can\)\n"
        )[1]
        assert re.search(r"/tasks/task_\w+$", due) and due != task
        sitting.saves(AGENT)
        sitting.waits_for(r"(?s)(?=.*VOIDING ch_1)(?=.*dev \| order-1: charge was taken back\n)")
    assert (sitting.said.count("CHARGING"), sitting.said.count("VOIDING")) == (1, 1)
    assert sitting.said.count("nobody has taken it back") == 1
