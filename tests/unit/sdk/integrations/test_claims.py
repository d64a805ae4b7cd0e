"""What people read beside a model's calls: for whom they are, what for, and the model's own words."""

from __future__ import annotations

from typing import Any

import pytest

from countersign import MisuseError
from countersign.contract.wire import Claimed
from tests.fakes.desk import Desk, claims_of, refund_tool
from tests.fakes.talking import Talk

REFUND = {"order_id": "o-1", "amount_cents": 100}


def test_people_read_for_whom_a_model_acts_and_what_for(desk: Desk, talk: Talk) -> None:
    refund, claims = refund_tool(desk), claims_of(desk)
    script = [talk.calls(("refund", REFUND), said="It came broken."), talk.says("Done.")]
    talk.run(script, [refund], runtime=desk.runtime, purpose="a ticket", on_behalf_of="mia")
    assert claims == [Claimed(purpose="a ticket", reasoning="It came broken.", on_behalf_of="mia")]


@pytest.mark.parametrize(
    ("said", "match"),
    [
        ({"purpose": 4711}, "purpose"),
        ({"on_behalf_of": "x" * 201}, "on_behalf_of"),
        ({"wait": "10m"}, "is no number of seconds"),
    ],
)
def test_what_is_wrong_with_them_is_said_before_the_model_is_asked(
    desk: Desk, talk: Talk, said: dict[str, Any], match: str
) -> None:
    refund = refund_tool(desk)
    with pytest.raises(MisuseError, match=match):
        talk.run([talk.says("Done.")], [refund], runtime=desk.runtime, **said)
    assert talk.vendor.sent == []
