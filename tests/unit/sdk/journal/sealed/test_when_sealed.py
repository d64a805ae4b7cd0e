"""Journals with seals in use: who refuses without the key, what stays bound, what older journals hold."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from countersign import MemoryAdapter, errors, resume, tool, transaction
from countersign.journal.reading import COMPENSATE_LANE, LIVE_LANE
from countersign.journal.sealing import HIDDEN, is_sealed, sealed_pointers
from countersign.journal.telling import describe
from countersign.manifests.drafting import manifest_json
from countersign.tools.tool import tool_of
from tests.fakes.desk import Desk, failing_tool
from tests.unit.sdk.paying import CARD, LARGE, columns, found, pay_tool, rows, without_key


def test_before_anybody_has_said_what_is_secret_no_argument_is_written(desk: Desk) -> None:
    """The reviewed manifest lies with the service alone, and is asked for when the list is frozen."""
    pay = pay_tool(desk, secret=[])
    desk.publish(pay, secret=("/card",))  # the code does not call it secret
    with desk.step():
        pay("o-1", 5, CARD)
        (before,) = columns(desk)
        assert before["args"] == b""
        (shown,) = describe(desk.runtime.journal, found(desk, "t-1"))["effects"]
        assert (shown["state"], shown["args"]) == ("staged", '"(secret)"')
    (after,) = columns(desk)
    assert sealed_pointers(after["args"]) == ("/card",)
    assert b'"order_id":"o-1"' in after["args"]
    assert rows(desk, "t-1")[0].args == b'{"amount_cents":5,"card":"4111-9f1c7ab3","order_id":"o-1"}'


def test_where_the_manifest_is_at_hand_a_call_is_sealed_as_it_is_staged(desk: Desk, tmp_path: Path) -> None:
    pay = pay_tool(desk, manifest=tmp_path / "pay.json")
    (tmp_path / "pay.json").write_bytes(manifest_json(tool_of(pay).draft_manifest()))
    with desk.step():
        pay("o-1", 5, CARD)
        (staged,) = columns(desk)
        assert sealed_pointers(staged["args"]) == ("/card",)
    assert sealed_pointers(columns(desk)[0]["args"]) == ("/card",)
    assert desk.done == [("pay", "o-1", 5, CARD)]


def test_a_call_without_its_secret_is_in_clear_and_needs_no_key(desk: Desk, tmp_path: Path) -> None:
    pay = pay_tool(desk)
    with without_key(desk, tmp_path) as poor, transaction("t-1", runtime=poor):
        paid = pay("o-1", 5)
    (row,) = columns(desk)
    assert (row["args"], row["result"]) == (b'{"amount_cents":5,"order_id":"o-1"}', b'"paid with None"')
    assert paid.result == "paid with None"


def test_a_manifest_beside_a_live_tool_that_is_another_lane_s_is_refused(desk: Desk, tmp_path: Path) -> None:
    path = tmp_path / "remember.json"

    @tool("remember", lane="live", adapter=MemoryAdapter(), resource=("Note", "card"), manifest=path,
          registry=desk.registry)  # fmt: skip
    def remember(card: str) -> None:
        """Remember something."""

    path.write_bytes(manifest_json(tool_of(remember).draft_manifest().model_copy(update={"lane": "staged"})))
    with pytest.raises(errors.RegistrationError, match="live in code"), desk.step():
        remember(CARD)
    assert columns(desk, LIVE_LANE) == []


def test_a_compensation_takes_its_secrets_over_though_its_own_manifest_has_none(desk: Desk) -> None:
    said: list[str] = []

    @tool("void", resource=("Card", "card"), registry=desk.registry)
    def void(card: str, cents: int) -> str:
        """Take it back."""
        said.append(card)
        raise errors.NotDone(f"{card} cannot be given back")

    pay = pay_tool(
        desk, compensate="void", compensation_map={"card": "args:/card", "cents": "args:/amount_cents"}
    )
    desk.publish(void)
    fails = failing_tool(desk, errors.NotDone("mailbox full"), acts=False)
    with pytest.raises(errors.EffectFailed), desk.step():
        pay("o-1", 5, CARD)
        fails("o-1")
    (row,) = columns(desk, COMPENSATE_LANE)
    assert sealed_pointers(row["args"]) == ("/card",)
    assert is_sealed(row["args"])
    assert CARD not in row["resource_id"]
    assert row["error"] == "NotDone"
    (read,) = rows(desk, "t-1", COMPENSATE_LANE)
    assert read.frozen().resource.id == CARD == said[0]
    (told,) = [
        one for one in describe(desk.runtime.journal, found(desk, "t-1"))["effects"] if one["tool"] == "void"
    ]
    assert told["args"] == f'{{"card":"{HIDDEN}","cents":5}}'


@pytest.mark.parametrize("card", [None, CARD], ids=["none", "some"])
def test_whether_a_secret_is_left_takes_one_row(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, card: str | None
) -> None:
    """It is asked for each transaction that fails, and there may be many of either."""
    pay, journal = pay_tool(desk), desk.runtime.journal
    read, answered = journal.database.rows, list[Any]()

    def counted(*asked: Any) -> list[Any]:
        answered.extend(found := read(*asked))
        return found

    for key in ("t-1", "t-2"):
        with pytest.raises(errors.ReviewPending) as pending, desk.step(key):
            pay("o-1", LARGE, card)
        desk.service.approve(pending.value.txn)
    with monkeypatch.context() as watched:
        watched.setattr(journal.database, "rows", counted)
        assert journal.transactions.unfinished_has_secrets() is (card is not None)
    assert len(answered) <= 1
    resume(desk.runtime)
    assert not journal.transactions.unfinished_has_secrets(), "what has ended is nobody's trouble"
