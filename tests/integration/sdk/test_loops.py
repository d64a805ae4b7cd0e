"""The loops in front of the real service: what people say to a model's calls reaches the model."""

from __future__ import annotations

import copy
import json
import os
import signal
import sys
import traceback
from pathlib import Path
from typing import Any

import pytest

from countersign import NotDone
from countersign.integrations import run_anthropic, run_openai
from tests.fakes.model_vendors import vendor
from tests.fakes.talking import ASK, Talk
from tests.integration.sdk.conftest import Office

SMALL = ("refund", {"order_id": "o-1", "amount_cents": 100})
LARGE = ("refund", {"order_id": "o-2", "amount_cents": 20_000})


@pytest.mark.parametrize("kind", ["openai", pytest.param("anthropic-async", marks=pytest.mark.long)])
def test_a_denial_by_people_is_told_to_the_call_it_is_about(kind: str, office: Office, key: str) -> None:
    talk, how = Talk(kind), {"key": key, "runtime": office.runtime}
    end = talk.run([talk.calls(SMALL, LARGE)], [office.tools.refund], **how)
    assert end.pending is not None
    office.deny(end.pending, "the parcel arrived")
    done = talk.run([talk.says("No.")], [office.tools.refund], messages=end.messages, **how)
    small, large = done.steps[0].answers
    assert office.tools.done == []
    assert "the parcel arrived" in large.text and not large.done
    assert "go together" in small.text and "the parcel arrived" not in small.text and not small.done


def in_a_child(office: Office, talk: Talk, key: str, kept: Path, done: Path, end: int) -> int:
    """Go on from what is kept, in a process of its own that is killed when it has this many more messages to keep."""
    pid = os.fork()
    if pid:
        return os.waitpid(pid, 0)[1]
    code = 1
    try:
        messages = [json.loads(line) for line in kept.read_text().splitlines()]
        left = [end]

        def hear(message: Any) -> None:
            left[0] -= 1
            if not left[0]:
                os.kill(os.getpid(), signal.SIGKILL)
            with kept.open("a") as file:
                file.write(json.dumps(message) + "\n")

        def act(*what: Any) -> None:
            with done.open("a") as file:
                file.write(json.dumps(what) + "\n")

        office.tools.act, office.tools.error = act, NotDone("no address")  # type: ignore[method-assign]
        run = run_openai if talk.is_openai else run_anthropic
        with office.elsewhere() as runtime, talk._client({}) as client:
            tools = [office.tools.refund, office.tools.charge, office.tools.notify]
            more = {"key": key, "on_message": hear} | ({} if talk.is_openai else {"max_tokens": 500})
            run(client, model="m", messages=messages, tools=tools, runtime=runtime, **more)
        code = 0
    except BaseException:  # noqa: BLE001 - a child must not come back into the tests
        traceback.print_exc(file=sys.stderr)
    os._exit(code)


@pytest.mark.parametrize("kind", ["openai", pytest.param("anthropic", marks=pytest.mark.long)])
def test_killed_before_each_message_it_keeps_a_conversation_goes_on_and_nothing_happens_twice(
    kind: str, office: Office, key: str, tmp_path: Path
) -> None:
    talk = Talk(kind)
    charge, notify = ("charge", {"order_id": "o-1", "amount_cents": 5}), ("notify", {"order_id": "o-1"})
    script = [
        talk.calls(SMALL, ("refund", {"order_id": "o-2", "amount_cents": 100}), turn="a"),
        talk.calls(charge, notify, turn="b"),
        talk.says("Done."),
    ]
    kept, done = tmp_path / "kept", tmp_path / "done"
    kept.write_text(json.dumps(ASK[0]) + "\n")
    ends = []
    with vendor() as talk.vendor:
        for _ in range(20):
            said = sum(json.loads(line)["role"] == "assistant" for line in kept.read_text().splitlines())
            before = len(kept.read_text().splitlines())
            talk.vendor.script[:] = copy.deepcopy(script[said:])
            ends.append(in_a_child(office, talk, key, kept, done, end=2))
            if ends[-1] == 0:
                break
            assert len(kept.read_text().splitlines()) == before + 1
    assert {os.waitstatus_to_exitcode(one) for one in ends[:-1]} == {-signal.SIGKILL} and ends[-1] == 0
    assert [json.loads(line)[:2] for line in done.read_text().splitlines()] == [
        ["refund", "o-1"], ["refund", "o-2"], ["charge", "o-1"], ["void", "c-o-1"]
    ]  # fmt: skip
    told = kept.read_text()
    assert len(ends) == (7 if talk.is_openai else 5)
    assert told.count("taken back") == 1 and told.count("no address") == 2
    assert "no address" in talk.vendor.answers()[-1]
