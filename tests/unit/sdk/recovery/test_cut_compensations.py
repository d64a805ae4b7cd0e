"""A process that died inside a compensation: it is called again with its call key, or a person is asked."""

import pytest

from countersign import JournalError, NotDone, resume, tool
from tests.fakes.desk import Desk, charge_undone_by_void, failing_tool, states


@pytest.mark.parametrize(
    ("idempotent", "calls", "state", "after"),
    [(True, 2, "compensated", "settled"), (False, 1, "compensating", "unsettled")],
    ids=["idempotent", "not idempotent"],
)
def test_scenario_20_a_compensation_cut_by_a_crash_is_called_again_with_its_key_only_if_it_is_idempotent(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, idempotent: bool, calls: int, state: str, after: str
) -> None:
    def full(*_: object) -> None:
        raise JournalError("the disk is full")

    def cut() -> None:
        monkeypatch.setattr(desk.runtime.journal.firing, "write", full)

    @tool("void", resource=("Charge", "charge_id"), idempotent=idempotent, registry=desk.registry)
    def void(charge_id: str) -> None:
        """Take a charge back."""
        desk.act("void", charge_id)
        cut()

    desk.publish(void)
    charge = charge_undone_by_void(desk)
    notify = failing_tool(desk, NotDone("no"), acts=False)
    desk.run((charge, "o-1"), (notify, "o-1"), raises=JournalError)
    desk.runtime.journal.leases.close()
    assert desk.done == [("charge", "o-1"), ("void", "c-o-1")]
    with desk.restarted() as later:
        (found,) = resume(later.runtime)
        resume(later.runtime)
    assert (found.after, states(desk)["charge#1"]) == (after, state)
    assert desk.done == [("charge", "o-1"), *[("void", "c-o-1")] * calls]
    assert len(set(desk.keys[1:])) == 1
