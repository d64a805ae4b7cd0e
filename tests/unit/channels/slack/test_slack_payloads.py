"""Reading what Slack delivers: it is of a kind we know, or refused, and nothing else is raised."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import urlencode

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policy_service.channels.slack.payloads import FORM, Interaction, read_body, read_envelope
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
