"""An export says what it said when it was written: one that was edited by hand is refused."""

import json
from typing import Any

import pytest

from countersign import JournalError, MemoryAdapter, replay, tool
from countersign.journal.export import transaction_digest
from countersign.journal.verification import verify
from tests.fakes.desk import Desk
from tests.unit.sdk import journals


@pytest.fixture
def step(desk: Desk, refund: Any) -> Any:
    """A step with a live and a staged call, committed under two keys."""

    @tool("look", lane="live", adapter=MemoryAdapter(), registry=desk.registry)
    def look() -> int:
        """Look."""
        return 3

    def body(_: object) -> Any:
        return refund("o-1", 100 * look())

    for key in ("t-1", "t-2"):
        desk.run((body, None), key=key)
    return body


@pytest.fixture
def document(desk: Desk, step: Any) -> Any:
    return journals.document(desk.runtime.journal, "t-1", "t-2")


def replayed(desk: Desk, step: Any, export: Any) -> Any:
    return replay("t-1", step, export=export, runtime=desk.runtime)


def edited(document: Any, edit: Any) -> Any:
    copy: Any = json.loads(json.dumps(document))
    edit(copy["transactions"][0])
    return copy


@pytest.mark.parametrize("mode", ["verify", "reconstruct"])
def test_an_export_replays(desk: Desk, step: Any, document: Any, mode: Any, monkeypatch: Any) -> None:
    """Also where there is no journal and no service; how it is laid out is no part of what it says."""
    (path := desk.folder / "export.json").write_text(json.dumps(document, sort_keys=True, indent=7))
    monkeypatch.setattr("countersign.simulation.replay.default_registry", desk.registry)
    monkeypatch.delenv("COUNTERSIGN_URL", raising=False)
    desk.runtime.close()
    for export in (document, path):
        found = replay("t-1", step, export=export, mode=mode)
        assert (found.status, found.unchecked, found.value.outcome) == ("same", (), "fired")
        assert found.value.result == {"refund_id": "r-o-1-300"}


EDITS: list[Any] = [
    lambda one: one["effects"][0].update(result='{"refund_id":"r-other"}'),
    lambda one: one["effects"][1].update(result="4"),
    lambda one: one["effects"][0].update(call_key="0" * 64),
    lambda one: one["effects"][0].update(state="failed"),
    lambda one: one["effects"].pop(),
    lambda one: one["effects"].reverse(),
    lambda one: one.update(note="all is well"),
    lambda one: one.update(chain="0" * 64),
    lambda one: one.update(added="by hand"),
    lambda one: one.pop("note"),
    lambda one: one.update(digest="0" * 64),
    lambda one: one.pop("digest"),
]


@pytest.mark.parametrize("edit", EDITS)
def test_scenario_58_an_edited_export_is_refused(desk: Desk, step: Any, document: Any, edit: Any) -> None:
    """Also where it is another transaction that was."""
    first, second = document["transactions"]
    for order in ([first, second], [second, first]):
        changed = edited(document | {"transactions": order}, edit)
        with pytest.raises(JournalError, match=f"{order[0]['txn'][:12]}.* is not as it was exported"):
            replayed(desk, step, changed)


def test_one_without_digests_replays(desk: Desk, step: Any, document: Any) -> None:
    for one in document["transactions"]:
        del one["digest"], one["chain"]
        one["effects"][0]["result"] = '"tampered with"'
    found = replayed(desk, step, document)
    assert found.outcomes[0].recorded == '"tampered with"'
    (reported,) = found.unchecked
    assert reported.startswith("the export of 't-1' has no digest, so it cannot be verified")


def test_a_digest_has_no_key(desk: Desk, step: Any, document: Any) -> None:
    """What a digest without a key proves, and what it does not."""

    def forge(one: Any) -> None:
        one["effects"][0] |= {"result": '"forged"', "call_key": "0" * 64}
        one["digest"] = transaction_digest(one)

    forged = replayed(desk, step, edited(document, forge))
    assert (forged.unchecked, [one.kind for one in forged.divergences]) == ((), ["changed", "result"])
    heads = {chain.key: chain.head for chain in verify(desk.runtime.settings.journal_path, "t-1").chains}
    assert heads == {"t-1": document["transactions"][0]["chain"]}
    desk.run((step, None))  # run again: the journal goes on, and the export does not
    (chain,) = verify(desk.runtime.settings.journal_path, "t-1").chains
    assert chain.head != document["transactions"][0]["chain"]
