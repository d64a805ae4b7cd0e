"""The loops: the calls of each model message are one transaction, and the answers are accurate."""

import pytest

from countersign import MisuseError, RegistrationError, Retry, tool
from countersign.integrations.model_loop import as_json
from countersign.integrations.openai_chat import OpenAIChat
from tests.fakes.desk import Desk
from tests.fakes.talking import ALL, ASK, Talk
from tests.unit.sdk.integrations.talks import BOTH, REFUND


@pytest.fixture(params=ALL)
def talk(request, desk: Desk) -> Talk:
    return Talk(request.param, runtime=desk.runtime)


def test_a_call_fires_and_the_model_reads_its_result(desk: Desk, talk: Talk, refund) -> None:
    """The tool definitions follow the manifests."""
    end = talk.turn([("refund", REFUND)], [refund])
    assert (end.text, end.pending, desk.done) == ("Done.", None, [("refund", "o-4", 1200)])
    assert talk.vendor.answers() == ['{"refund_id":"r-o-4-1200"}']
    (step,), (seen,) = end.steps, talk.vendor.sent[0]["tools"]
    assert (step.key, [one.done for one in step.answers]) == ("case-1/turn-1", [True])
    assert end.messages[:1] == ASK and end.messages[-1]["role"] == "assistant"
    named = seen["function"] if talk.is_openai else seen
    assert (named["name"], named["description"]) == ("refund", "Give money back for an order.")
    schema = named["parameters" if talk.is_openai else "input_schema"]
    assert (schema["additionalProperties"], schema["required"]) == (False, ["order_id", "amount_cents"])


def test_without_tools_it_is_a_conversation(desk: Desk, talk: Talk) -> None:
    end = talk.run([talk.says("Hello.")], [])
    assert (end.text, end.steps) == ("Hello.", ())
    assert "tools" not in talk.vendor.sent[0]


def test_calls_of_one_message_go_together_in_their_order(desk: Desk, talk: Talk, refund) -> None:
    """Equal ones are one, and the answer says so."""
    talk.turn([("refund", {"order_id": f"o-{n}", "amount_cents": n}) for n in (3, 1, 2, 1)], [refund])
    *first, last = talk.vendor.answers()
    assert [one[1] for one in desk.done] == ["o-3", "o-1", "o-2"] == [one[16:19] for one in first]
    assert last.startswith("done once, as the equal call before it")
    assert desk.face.asked("/v1/transactions") == 1


MISUSE = {
    "a stream": ({"stream": True}, "stream=... is set by the loop"),
    "several choices": ({"n": 2}, "n=... is set by the loop"),
    "a key that is too long": ({"key": "k" * 181}, "1 to 180 characters"),
    "a key that is no text": ({"key": 7}, "write key='7'"),
    "an empty key": ({"key": ""}, "1 to 180 characters"),
    "a purpose that is no text": ({"purpose": 4711}, "purpose"),
    "a person of too long a name": ({"on_behalf_of": "x" * 201}, "on_behalf_of"),
    "a wait that is no number": ({"wait": "10m"}, "is no number of seconds"),
    "an isolation that runs again": ({"isolation": Retry(3)}, "the model may call again"),
    "no isolation": ({"isolation": "later"}, "is not a policy"),
}


@pytest.mark.parametrize(("given", "says"), MISUSE.values(), ids=MISUSE.keys())
@pytest.mark.parametrize("talk", BOTH, indirect=True)
def test_misuse_is_reported_first(given: dict, says: str, desk: Desk, talk: Talk) -> None:
    with pytest.raises(MisuseError, match=says):
        talk.run([], [], **given)
    assert talk.vendor.sent == []


def test_invalid_tools_are_reported_before_the_model_is_called(refund, talk: Talk) -> None:
    wrong = {"names 'refund' twice": [refund, refund], "is not a tool": [len]}
    for says, tools in wrong.items():
        with pytest.raises((MisuseError, RegistrationError), match=says):
            talk.run([], tools)
    assert talk.vendor.sent == []


def test_an_async_tool_needs_the_async_client(desk: Desk, talk: Talk) -> None:
    @tool("send", resource=("Order", "order_id"), registry=desk.registry)
    async def send(order_id: str) -> str:
        """Send."""
        desk.act("send", order_id)
        return "sent"

    desk.publish(send)
    script = [talk.calls(("send", {"order_id": "o-4"})), talk.says("Sent.")]
    if not talk.is_async:
        with pytest.raises(MisuseError, match="send is async"):
            talk.run(script, [send])
        return
    assert talk.run(script, [send]).text == "Sent."
    assert talk.vendor.answers() == ["sent"] and desk.done == [("send", "o-4")]


def test_another_client_is_named(desk: Desk) -> None:
    from countersign.integrations import run_anthropic, run_openai

    given = {"model": "m", "messages": [], "tools": [], "key": "k", "runtime": desk.runtime}
    with pytest.raises(MisuseError, match=r"openai\.OpenAI\(\.\.\.\).*this is object"):
        run_openai(object(), **given)
    with pytest.raises(MisuseError, match=r"anthropic\.Anthropic\(\.\.\.\).*this is object"):
        run_anthropic(object(), max_tokens=1, **given)


def test_messages_are_a_list() -> None:
    for messages in ("hello", ASK[0]):
        with pytest.raises(MisuseError, match=r'write messages=\[\{"role": "user"'):
            as_json(OpenAIChat(), messages)
