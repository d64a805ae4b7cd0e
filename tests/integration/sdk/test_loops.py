"""The loops in front of the real service: what people say to a model's calls reaches the model."""

from __future__ import annotations

import pytest

from tests.fakes.talking import Talk
from tests.integration.sdk.conftest import Office

SMALL = ("refund", {"order_id": "o-1", "amount_cents": 100})
LARGE = ("refund", {"order_id": "o-2", "amount_cents": 20_000})


@pytest.mark.parametrize("kind", ["openai", pytest.param("anthropic-async", marks=pytest.mark.long)])
def test_a_denial_by_people_names_its_call(kind: str, office: Office, key: str) -> None:
    talk, how = Talk(kind), {"key": key, "runtime": office.runtime}
    end = talk.run([talk.calls(SMALL, LARGE)], [office.tools.refund], **how)
    assert end.pending is not None
    office.deny(end.pending, "the parcel arrived")
    done = talk.run([talk.says("No.")], [office.tools.refund], messages=end.messages, **how)
    small, large = done.steps[0].answers
    assert office.tools.done == []
    assert "the parcel arrived" in large.text and not large.done
    assert "go together" in small.text and "the parcel arrived" not in small.text and not small.done
