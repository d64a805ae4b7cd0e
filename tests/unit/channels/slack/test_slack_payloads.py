"""Reading what Slack delivers: it is of a kind we know, or refused, and nothing else is raised."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import urlencode

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policy_service.channels.slack.payloads import (
    FORM,
    Event,
    Happened,
    Interaction,
    Other,
    read_body,
    read_envelope,
)
from policy_service.errors import InvalidRequestError

NAMES = st.sampled_from(
    ["type", "team", "user", "id", "team_id", "api_app_id", "actions", "action_id", "action_ts", "value", "view",
     "state", "values", "private_metadata", "container", "message_ts", "channel_id", "command", "text", "user_id",
     "event", "challenge", "payload", "trigger_id", "block_actions", "view_submission", "event_callback"]
)  # fmt: skip
ANY = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | NAMES | st.text(st.characters()),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(NAMES, inner, max_size=8),
    max_leaves=25,
)


def _read(body: bytes, form: str) -> Any:
    try:
        return read_body(body, form)
    except InvalidRequestError:
        return None


@given(ANY, st.sampled_from(["application/json", FORM, "", "text/plain; charset=utf-16", "\0"]))
def test_any_json_is_read_or_refused(given_: Any, form: str) -> None:
    text = json.dumps(given_)
    _read(text.encode(), form)
    _read(urlencode({"payload": text}).encode(), FORM)
    if isinstance(given_, dict):
        fields = {name: str(value).encode("utf-8", "replace") for name, value in given_.items()}
        _read(urlencode(fields).encode(), FORM)


@given(st.binary(), st.text())
def test_any_bytes_are_read_or_refused(body: bytes, form: str) -> None:
    _read(body, form)


@given(st.sampled_from(["interactive", "slash_commands", "events_api", "hello", ""]), ANY)
def test_any_envelope_is_read_or_refused(kind: str, payload: Any) -> None:
    try:
        read_envelope(kind, payload)
    except InvalidRequestError:
        return


ODD: list[Any] = [None, True, 5, 1.5, [], ["U1"], {}, {"id": "U1"}, "\0", "\ud800"]


@pytest.mark.parametrize("odd", ODD, ids=repr)
@pytest.mark.parametrize("member", ["type", "user", "tab", "tokens", "item", "channel"])
def test_an_event_with_an_odd_member_is_accepted(member: str, odd: Any) -> None:
    event = {"type": "app_home_opened", "user": "U1", "tab": "home", "tokens": {"bot": ["U2"]}, member: odd}
    read = read_envelope(
        "events_api", {"type": "event_callback", "team_id": "T1", "api_app_id": "A1", "event": event}
    )
    assert isinstance(read, Happened)
    kept = {"type": "app_home_opened", "user": "U1", "tab": "home", "bot_revoked": True}
    lost = {"type": "", "user": "", "tab": "", "bot_revoked": False}
    name = "bot_revoked" if member == "tokens" else member
    assert read.event.model_dump() == kept | ({name: lost[name]} if name in lost else {})


@pytest.mark.parametrize("odd", ODD, ids=repr)
@pytest.mark.parametrize("member", ["event", "team_id", "api_app_id"])
def test_an_event_in_an_odd_envelope_is_accepted_and_does_nothing(member: str, odd: Any) -> None:
    given: dict[str, Any] = {"type": "event_callback", "team_id": "T1", "api_app_id": "A1", member: odd}
    read = read_envelope("events_api", given)
    assert isinstance(read, Other) or read.event == Event()


def test_null_is_as_absent() -> None:
    press = {
        "type": "block_actions", "api_app_id": "A1", "team": {"id": "T1"}, "user": {"id": "U1", "team_id": None},
        "trigger_id": None, "container": None, "view": None,
        "actions": [{"action_id": "approve", "action_ts": "1.0", "value": None}],
    }  # fmt: skip
    assert isinstance(read_envelope("interactive", press), Interaction)
    assert isinstance(read_envelope("interactive", press | {"actions": None}), Interaction)


@pytest.mark.parametrize("wrong", [5, True, None, ["U1"], {"id": "U1"}, 1.5])
def test_an_id_is_text_or_nothing(wrong: Any) -> None:
    press: dict[str, Any] = {
        "type": "block_actions",
        "api_app_id": "A1",
        "team": {"id": "T1"},
        "user": {"id": "U1"},
        "actions": [{"action_id": "approve", "action_ts": "1.0", "value": "v"}],
    }
    assert isinstance(read_envelope("interactive", press), Interaction)
    for changed in (
        press | {"api_app_id": wrong},
        press | {"team": {"id": wrong}},
        press | {"user": {"id": wrong}},
        press | {"actions": [{"action_id": wrong, "action_ts": "1.0"}]},
        press | {"actions": [{"action_id": "approve", "action_ts": wrong}]},
    ):
        with pytest.raises(InvalidRequestError):
            read_envelope("interactive", changed)
