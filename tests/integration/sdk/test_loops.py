"""The loops in front of the real service: what people say to a model's calls reaches the model."""

from __future__ import annotations

import pytest

from tests.fakes.talking import Talk
from tests.integration.sdk.conftest import Office

SMALL = ("refund", {"order_id": "o-1", "amount_cents": 100})
LARGE = ("refund", {"order_id": "o-2", "amount_cents": 20_000})


@pytest.mark.parametrize("kind", ["openai", "anthropic-async"])
def test_a_denial_by_people_is_told_to_the_call_it_is_about(kind: str, office: Office, key: str) -> None:
    talk = Talk(kind)
    end = talk.run([talk.calls(SMALL, LARGE)], [office.tools.refund], key=key, runtime=office.runtime)
    assert end.pending is not None
    office.deny(end.pending, "the parcel arrived")
    done = talk.run(
        [talk.says("No.")], [office.tools.refund], key=key, runtime=office.runtime, messages=end.messages
    )
    small, large = done.steps[0].answers
    assert office.tools.done == []
    assert "the parcel arrived" in large.text and not large.done
    assert "go together" in small.text and "the parcel arrived" not in small.text and not small.done


@pytest.mark.parametrize("kind", ["anthropic", "openai-async"])
def test_an_approval_fires_what_the_model_called(kind: str, office: Office, key: str) -> None:
    talk = Talk(kind)
    end = talk.run([talk.calls(LARGE)], [office.tools.refund], key=key, runtime=office.runtime)
    assert end.pending is not None and "finance" in end.text
    office.approve(end.pending)
    done = talk.run(
        [talk.says("Done.")], [office.tools.refund], key=key, runtime=office.runtime, messages=end.messages
    )
    assert done.text == "Done." and talk.vendor.answers() == ["r-o-2"]
    assert office.tools.done == [("refund", "o-2", 20_000)]


def test_a_policys_no_reaches_the_model_with_the_rule(office: Office, key: str) -> None:
    talk = Talk("openai")
    huge = ("refund", {"order_id": "o-3", "amount_cents": 900_000})
    end = talk.run(
        [talk.calls(huge), talk.says("No.")], [office.tools.refund], key=key, runtime=office.runtime
    )
    (told,) = end.steps[0].answers
    assert "never-huge" in told.text and "Refunds above 5,000.00 are not made here." in told.text
