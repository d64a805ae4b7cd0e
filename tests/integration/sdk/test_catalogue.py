"""A manifest taken from the catalogue by somebody new to it: reviewed, served, asked about, fired and taken back."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from countersign import Denied, EffectFailed, NotDone, Runtime, ToolRegistry, tool, transaction
from countersign.cli.app import app
from examples.local_service import LocalService, free_port
from tests.fakes.local_service import WarmService
from tests.house.repository import ROOT
from tests.integration.sdk.conftest import ROLE

pytestmark = pytest.mark.long

POLICY = """
@id("desk-may-act")
permit (principal in Role::"support-agent", action, resource);

@id("no-large-charges") @doc("Charges above 100.00 are not made here.")
forbid (principal, action == Action::"payments.charge", resource)
when { context.input.amount_cents > 10000 };
"""


@pytest.fixture
def served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LocalService]:
    """The service with what `countersign tools take` wrote, moved to where reviewed manifests lie."""
    monkeypatch.chdir(tmp_path)
    taken = CliRunner().invoke(app, ["tools", "take", "payments.charge", "mail.send", "--out", "drafts"])
    assert taken.exit_code == 0, taken.output
    bundle = tmp_path / "policies"
    shutil.copytree(tmp_path / "drafts", bundle / "tools")
    (bundle / "desk.cedar").write_text(POLICY)
    (bundle / "groups.toml").write_bytes((ROOT / "policies" / "groups.toml").read_bytes())
    with WarmService(tmp_path / "service", bundle, port=free_port()) as service:
        yield service


def test_what_was_taken_is_asked_about_fired_and_taken_back(served: LocalService, tmp_path: Path) -> None:
    registry, done = ToolRegistry(), list[tuple[Any, ...]]()

    @tool("payments.charge", registry=registry)
    def charge(
        customer: str, payment_method: str, amount_cents: int, currency: str, reference: str
    ) -> dict[str, str]:
        done.append(("charge", customer, amount_cents))
        return {"payment_id": "pay_1"}

    @tool("payments.refund", registry=registry)
    def refund(payment_id: str, customer: str, amount_cents: int, currency: str, reason: str) -> None:
        done.append(("refund", payment_id, customer, amount_cents, currency, reason))

    @tool("mail.send", registry=registry)
    def send(customer: str, to: str, subject: str, body: str) -> None:
        raise NotDone("the mailbox is full")

    settings = replace(served.enroll("support", ROLE), journal_path=tmp_path / "journal.db")
    with Runtime(settings, registry=registry) as runtime:
        with pytest.raises(EffectFailed), transaction("t-1", runtime=runtime):
            charge("cus_1", "card_1", 4_200, "EUR", "order 81")
            send("cus_1", "ada@example.com", "Your order", "It is on its way.")
        with pytest.raises(Denied, match="no-large-charges"), transaction("t-2", runtime=runtime):
            charge("cus_1", "card_1", 10_001, "EUR", "order 82")
    assert done == [
        ("charge", "cus_1", 4_200),
        ("refund", "pay_1", "cus_1", 4_200, "EUR", "the charge was taken back"),
    ]
