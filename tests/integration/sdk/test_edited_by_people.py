"""Other arguments instead of a denial, end to end: the real service, the agent's own process, people at a browser."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from countersign import Edited, Proposal, Runtime, Transaction, resume, run_transaction
from countersign.cli.app import app
from countersign.journal.export import describe_transaction
from countersign.recovery.recovery import RecoveryResult
from countersign.recovery.worker import run_worker
from examples.person import PageError, Person
from policy_service.identity.dev_signin import DEV_ISSUER
from tests.integration.sdk.conftest import ROLE, Office, until

LESS = {"order_id": "o-1", "amount_cents": 60_000}
DONE = [("refund", "o-1", 60_000)]


def review_of(office: Office, txn: str) -> str:
    """Where people answer the transaction as it is now."""
    review = office.runtime.client().view(txn).effects[0].review
    assert review is not None
    return review.url


def propose(office: Office, txn: str, amount: int = 60_000) -> None:
    """Maya changes the amount in the form of the review's page, reads the difference, and sends it."""
    url, change = review_of(office, txn), {"amount_cents": str(amount)}
    office.person("maya").propose(url, change, "half of it was delivered")


def approve(office: Office, txn: str) -> None:
    office.person("tomas").approve(review_of(office, txn), "looks right")


def is_less(one: Proposal) -> bool:
    return one.args == LESS


def test_proposed_accepted_approved_by_another_and_fired_once(office: Office, key: str) -> None:
    txn = office.asked(key).txn
    propose(office, txn)
    (proposal,) = office.asked(key).proposals  # this program takes no changes, and gets a message of it
    assert (proposal.args, proposal.changed, proposal.name) == (LESS, ("amount_cents",), "Maya Lindqvist")
    asked: list[Proposal] = []

    def judge(one: Proposal) -> bool:
        asked.append(one)
        return one.changed == ("amount_cents",) and one.args["amount_cents"] == 60_000

    waits = office.asked(key, accept_edits=judge)
    assert ([one.proposal_id for one in asked], waits.proposals) == ([proposal.proposal_id], ())
    with pytest.raises(PageError, match="may this person answer"):
        office.person("maya").approve(review_of(office, txn), "mine")
    approve(office, txn)
    with office.elsewhere() as another:
        fired = office.refund(key, runtime=another, accept_edits=judge)
    office.refund(key)  # spent: what it did is found, and nothing fires
    assert office.tools.done == DONE
    view = office.runtime.client().view(txn)
    assert (view.rev, view.state.value, view.effects[0].args) == (2, "settled", LESS)
    assert office.tools.keys == [view.effects[0].call_key] == [fired.effects[0].call_key]
    (record,) = office.runtime.journal.transactions.find(key)
    reported = describe_transaction(office.runtime.journal, record)
    assert "Maya Lindqvist" in reported["edits"] and "agent:support accepted" in reported["edits"]
    (effect,) = reported["effects"]
    assert (json.loads(effect["args"]), json.loads(effect["staged"])["amount_cents"]) == (LESS, 90_000)


@pytest.mark.parametrize("live", [False, True], ids=["in a block", "in a step with live effects"])
def test_a_waiting_program_accepts_and_fires_an_edit(office: Office, key: str, live: bool) -> None:
    def step(_: Transaction) -> None:
        office.tools.note("o-1", "refunding")
        office.tools.refund("o-1", 90_000)

    def people(_maya: Person, _url: str) -> None:
        txn = Transaction(office.runtime, key).txn
        propose(office, txn)
        until(lambda: office.runtime.client().view(txn).rev == 2)
        approve(office, txn)

    with office.meanwhile(key, people):
        if live:
            run_transaction(step, key=key, wait=30, accept_edits=is_less, runtime=office.runtime)
        else:
            office.refund(key, wait=30, accept_edits=True)
    assert office.tools.done == DONE


def test_an_edit_fires_only_if_the_program_accepts_edits(office: Office, tmp_path: Path, key: str) -> None:
    """Another agent of the same service, with jonas as its owner."""
    path, owner = tmp_path / "owned.pem", f"{DEV_ISSUER}|jonas"
    words = ("--role", ROLE, "--owner", owner, "--key-out", str(path))
    office.service.command("agent", "enroll", "owned", *words)
    settings = replace(office.settings, agent="owned", key_path=path, journal_path=tmp_path / "owned.db")
    mine = replace(office, settings=settings, runtime=Runtime(settings, registry=office.tools.registry))
    with mine.runtime:
        txn = mine.asked(key).txn
        propose(mine, txn)
        mine.person("jonas").accept_change(review_of(mine, txn))
        with pytest.raises(Edited) as refused:
            mine.refund(key)
        (edit,) = refused.value.edits
        assert edit.accepted_by == f"person:{owner}"
        approve(mine, txn)
        (left,) = resume(mine.runtime)  # approved, and still nothing that was not staged
        assert (mine.tools.done, "accept_edits" in left.note) == ([], True)
        mine.refund(key, accept_edits=True)
    assert mine.tools.done == DONE


def test_a_worker_fires_what_was_accepted_after_the_agent_had_gone(office: Office, key: str) -> None:
    txn = office.asked(key, accept_edits=True).txn
    propose(office, txn)
    reported: list[RecoveryResult] = []
    asyncio.run(run_worker(office.runtime, reported.append, every_seconds=None))
    assert (reported[-1].waiting, office.runtime.client().view(txn).rev) == (True, 2)
    approve(office, txn)
    asyncio.run(run_worker(office.runtime, reported.append, every_seconds=None))
    assert (reported[-1].after, office.tools.done) == ("settled", DONE)


def test_edits_are_decided_from_a_terminal(office: Office, key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in office.environment.items():
        monkeypatch.setenv(name, value)

    def says(code: int, part: str, *words: str) -> None:
        done = CliRunner().invoke(app, [*words])
        assert (done.exit_code, part in done.output) == (code, True), done.output

    txn = office.asked(key).txn
    propose(office, txn)
    (first,) = office.asked(key).proposals
    says(0, "at revision 1, review", "decline", first.proposal_id, "--reason", "all of it arrived")
    says(1, "is declined", "accept", first.proposal_id)
    propose(office, txn, 50_000)
    (second,) = office.asked(key).proposals
    says(0, "at revision 2, review", "accept", second.proposal_id)
