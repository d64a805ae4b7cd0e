"""Other arguments instead of a denial, end to end: the real service, the agent's own process, people at a browser."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from countersign import (
    Edited,
    Proposal,
    ReviewPending,
    Runtime,
    Transaction,
    resume,
    run_transaction,
    transaction,
)
from countersign.cli.app import app
from countersign.journal.telling import describe
from countersign.recovery.recovery import Resumed
from countersign.recovery.worker import work
from examples.person import PageError
from policy_service.identity.dev_signin import DEV_ISSUER
from tests.integration.sdk.conftest import ROLE, Office

LESS = {"order_id": "o-1", "amount_cents": 60_000}


def propose(office: Office, url: str, amount: int = 60_000, name: str = "maya") -> None:
    """Somebody changes the amount in the form of the review's page, reads the difference, and sends it."""
    office.person(name).propose(url, {"amount_cents": str(amount)}, "half of it was delivered")


def approve(office: Office, url: str, name: str = "tomas") -> None:
    office.person(name).approve(url, "looks right")


def review_of(office: Office, txn: str) -> str:
    """Where people answer the transaction as it is now."""
    review = office.runtime.client().view(txn).effects[0].review
    assert review is not None
    return review.url


def staged(office: Office, key: str, **how: Any) -> ReviewPending:
    with pytest.raises(ReviewPending) as pending, transaction(key, runtime=office.runtime, **how):
        office.tools.refund("o-1", 90_000)
    return pending.value


def again(office: Office, key: str, **how: Any) -> Transaction:
    with transaction(key, runtime=office.runtime, **how) as txn:
        office.tools.refund("o-1", 90_000)
    return txn


def test_proposed_accepted_approved_by_another_and_fired_once(office: Office, key: str) -> None:
    pending = staged(office, key)
    url = review_of(office, pending.txn)
    propose(office, url)
    shown = staged(office, key)  # this program takes no changes, and is told of it
    (proposal,) = shown.proposals
    assert (proposal.args, proposal.changed, proposal.name) == (
        LESS,
        ("amount_cents",),
        "Maya Lindqvist",
    )
    asked: list[Proposal] = []

    def judge(one: Proposal) -> bool:
        asked.append(one)
        return one.changed == ("amount_cents",) and one.args["amount_cents"] == 60_000

    waits = staged(office, key, accept_edits=judge)
    assert ([one.proposal_id for one in asked], waits.proposals) == ([proposal.proposal_id], ())
    with pytest.raises(PageError, match="may this person answer"):
        office.person("maya").approve(review_of(office, pending.txn), "mine")
    approve(office, review_of(office, pending.txn))
    fired = again(office, key, accept_edits=judge)
    again(office, key)  # spent: what it did is found, and nothing fires
    assert office.tools.done == [("refund", "o-1", 60_000)]
    view = office.runtime.client().view(pending.txn)
    assert (view.rev, view.state.value, view.effects[0].args) == (2, "settled", LESS)
    assert office.tools.keys == [view.effects[0].call_key] == [fired.effects[0].call_key]
    (record,) = office.runtime.journal.transactions.find(key)
    told = describe(office.runtime.journal, record)
    assert "Maya Lindqvist" in told["edits"] and "agent:support accepted" in told["edits"]
    (effect,) = told["effects"]
    assert (json.loads(effect["args"]), json.loads(effect["staged"])["amount_cents"]) == (LESS, 90_000)


def test_while_it_waits_a_program_answers_and_fires_what_is_approved(office: Office, key: str) -> None:
    def people() -> None:
        while not (page := office.runtime.client().transactions().transactions) or page[0].run_key != key:
            time.sleep(0.05)
        url = review_of(office, page[0].txn)
        propose(office, url)
        while office.runtime.client().view(page[0].txn).rev == 1:
            time.sleep(0.05)
        approve(office, review_of(office, page[0].txn))

    answering = threading.Thread(target=people)
    answering.start()
    again(office, key, wait=30, accept_edits=True)
    answering.join(30)
    assert office.tools.done == [("refund", "o-1", 60_000)]


def test_a_step_with_live_effects_runs_again_with_what_was_accepted(office: Office, key: str) -> None:
    def step(txn: Transaction) -> None:
        office.tools.note("o-1", "refunding")
        office.tools.refund("o-1", 90_000)

    def people() -> None:
        while not (page := office.runtime.client().transactions().transactions) or page[0].run_key != key:
            time.sleep(0.05)
        propose(office, review_of(office, page[0].txn))
        while office.runtime.client().view(page[0].txn).rev == 1:
            time.sleep(0.05)
        approve(office, review_of(office, page[0].txn))

    answering = threading.Thread(target=people)
    answering.start()
    run_transaction(step, key=key, wait=30, accept_edits=lambda one: one.args == LESS, runtime=office.runtime)
    answering.join(30)
    assert office.tools.done == [("refund", "o-1", 60_000)]


def owned(office: Office, tmp_path: Path, name: str) -> Office:
    """Another agent of the same service, with jonas as its owner."""
    path = tmp_path / f"{name}.pem"
    owner = f"{DEV_ISSUER}|jonas"
    office.service.command("agent", "enroll", name, "--role", ROLE, "--owner", owner, "--key-out", str(path))
    mine = replace(office.settings, agent=name, key_path=path, journal_path=tmp_path / f"{name}.db")
    return replace(office, settings=mine, runtime=Runtime(mine, registry=office.tools.registry))


def test_what_its_owner_accepted_fires_only_where_the_program_takes_it(
    office: Office, tmp_path: Path, key: str
) -> None:
    mine = owned(office, tmp_path, "owned")
    with mine.runtime:
        pending = staged(mine, key)
        propose(mine, review_of(mine, pending.txn))
        mine.person("jonas").accept_change(review_of(mine, pending.txn))
        with pytest.raises(Edited) as refused:
            again(mine, key)
        (edit,) = refused.value.edits
        assert edit.accepted_by == f"person:{DEV_ISSUER}|jonas"
        approve(mine, review_of(mine, pending.txn))
        (left,) = resume(mine.runtime)  # approved, and still nothing that was not staged
        assert (mine.tools.done, "accept_edits" in left.note) == ([], True)
        again(mine, key, accept_edits=True)
    assert mine.tools.done == [("refund", "o-1", 60_000)]


def environment(office: Office) -> dict[str, str]:
    """What an agent's own process is given."""
    settings = office.settings
    return {
        "COUNTERSIGN_URL": settings.url,
        "COUNTERSIGN_AGENT": settings.agent,
        "COUNTERSIGN_KEY": str(settings.key_path),
        "COUNTERSIGN_JOURNAL": str(settings.journal_path),
        "COUNTERSIGN_ALLOW_DEV": "1",
    }


AGENT = """
import sys
from countersign import ReviewPending, Runtime, Settings, tool, transaction

@tool("refund", resource=("Order", "order_id"))
def refund(order_id: str, amount_cents: int) -> str:
    '''Give money back.'''
    with open(sys.argv[2], "a") as done:
        print(order_id, amount_cents, file=done)
    return "r"

try:
    with transaction(sys.argv[1], accept_edits=True):
        refund("o-1", 90_000)
    print("fired")
except ReviewPending as pending:
    print("pending", pending.txn)
"""


def test_agents_that_end_in_between_fire_the_change_once(office: Office, tmp_path: Path, key: str) -> None:
    """Each run is a process of its own: staged, accepted, and fired by three of them."""
    script, done = tmp_path / "agent.py", tmp_path / "done"
    script.write_text(AGENT)

    def run() -> str:
        command = [sys.executable, str(script), key, str(done)]
        env = {**os.environ, **environment(office)}
        ran = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60, env=env)
        return ran.stdout.strip()

    txn = run().removeprefix("pending ")
    propose(office, review_of(office, txn))
    assert run() == f"pending {txn}"  # this run has accepted it
    assert office.runtime.client().view(txn).rev == 2
    approve(office, review_of(office, txn))
    assert [run(), run()] == ["fired", "fired"]
    assert done.read_text() == "o-1 60000\n"


def test_a_worker_fires_what_was_accepted_after_the_agent_had_gone(office: Office, key: str) -> None:
    pending = staged(office, key, accept_edits=True)
    propose(office, review_of(office, pending.txn))
    told: list[Resumed] = []
    asyncio.run(work(office.runtime, told.append, every_seconds=None))
    assert (told[-1].waiting, office.runtime.client().view(pending.txn).rev) == (True, 2)
    approve(office, review_of(office, pending.txn))
    asyncio.run(work(office.runtime, told.append, every_seconds=None))
    assert (told[-1].after, office.tools.done) == ("settled", [("refund", "o-1", 60_000)])


def test_a_person_answers_for_the_agent_from_a_terminal(
    office: Office, key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in environment(office).items():
        monkeypatch.setenv(name, value)
    pending = staged(office, key)
    propose(office, review_of(office, pending.txn))
    (first,) = staged(office, key).proposals
    runner = CliRunner()
    declined = runner.invoke(app, ["decline", first.proposal_id, "--reason", "all of it arrived"])
    assert (declined.exit_code, "at revision 1, review" in declined.output) == (0, True), declined.output
    refused = runner.invoke(app, ["accept", first.proposal_id])
    assert (refused.exit_code, "declined by now" in refused.output) == (1, True), refused.output
    propose(office, review_of(office, pending.txn), 50_000)
    (second,) = staged(office, key).proposals
    accepted = runner.invoke(app, ["accept", second.proposal_id])
    assert (accepted.exit_code, "at revision 2, review" in accepted.output) == (0, True), accepted.output
