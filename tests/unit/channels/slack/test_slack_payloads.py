"""Reading what Slack delivers: it is of a kind we know, or refused, and nothing else is raised."""

import json
from contextlib import suppress
from typing import Any
from urllib.parse import urlencode

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policy_service.channels.slack import payloads
from policy_service.channels.slack.payloads import FORM_TYPE, read_body, read_envelope
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


def _read(body: bytes, form: str) -> None:
    with suppress(InvalidRequestError):
        read_body(body, form)


@given(ANY, st.sampled_from(["application/json", FORM_TYPE, "", "text/plain; charset=utf-16", "\0"]))
def test_any_json_is_read_or_refused(given_: Any, form: str) -> None:
    text = json.dumps(given_)
    _read(text.encode(), form)
    _read(urlencode({"payload": text}).encode(), FORM_TYPE)
    if isinstance(given_, dict):
        fields = {name: str(value).encode("utf-8", "replace") for name, value in given_.items()}
        _read(urlencode(fields).encode(), FORM_TYPE)


@given(st.binary(), st.text())
def test_any_bytes_are_read_or_refused(body: bytes, form: str) -> None:
    _read(body, form)


@given(st.sampled_from(["interactive", "slash_commands", "events_api", "hello", ""]), ANY)
def test_any_envelope_is_read_or_refused(kind: str, payload: Any) -> None:
    with suppress(InvalidRequestError):
        read_envelope(kind, payload)


ODD: list[Any] = [None, True, 5, 1.5, [], ["U1"], {}, {"id": "U1"}, "\0", "\ud800"]
CALLED = {"type": "event_callback", "team_id": "T1", "api_app_id": "A1"}


@pytest.mark.parametrize("odd", ODD, ids=repr)
def test_an_event_with_an_odd_member_is_accepted(odd: Any) -> None:
    sent = {"type": "app_home_opened", "user": "U1", "tab": "home", "tokens": {"bot": ["U2"]}}
    kept = {"type": "app_home_opened", "user": "U1", "tab": "home", "bot_revoked": True}
    lost = {"type": {"type": ""}, "user": {"user": ""}, "tab": {"tab": ""}, "tokens": {"bot_revoked": False}}
    for member in ("type", "user", "tab", "tokens", "item", "channel"):
        read = read_envelope("events_api", CALLED | {"event": sent | {member: odd}})
        assert isinstance(read, payloads.EventEnvelope)
        assert read.event.model_dump() == kept | lost.get(member, {}), member


@pytest.mark.parametrize("odd", ODD, ids=repr)
@pytest.mark.parametrize("member", ["event", "team_id", "api_app_id"])
def test_an_event_in_an_odd_envelope_is_accepted_and_does_nothing(member: str, odd: Any) -> None:
    read = read_envelope("events_api", CALLED | {member: odd})
    assert isinstance(read, payloads.UnhandledPayload) or read.event == payloads.Event()


ACTION = {"action_id": "approve", "action_ts": "1.0", "value": "v"}
PRESS: dict[str, Any] = {
    "type": "block_actions", "api_app_id": "A1", "team": {"id": "T1"}, "user": {"id": "U1"}, "actions": [ACTION],
}  # fmt: skip


def test_null_is_as_absent() -> None:
    nulls = {"user": {"id": "U1", "team_id": None}, "trigger_id": None, "container": None, "view": None}
    press = PRESS | nulls | {"actions": [ACTION | {"value": None}]}
    assert isinstance(read_envelope("interactive", press), payloads.Interaction)
    assert isinstance(read_envelope("interactive", press | {"actions": None}), payloads.Interaction)


@pytest.mark.parametrize("wrong", [5, True, None, ["U1"], {"id": "U1"}, 1.5])
def test_an_id_is_text_or_nothing(wrong: Any) -> None:
    assert isinstance(read_envelope("interactive", PRESS), payloads.Interaction)
    members = {"api_app_id": wrong, "team": {"id": wrong}, "user": {"id": wrong}}
    actions = [{"actions": [ACTION | {name: wrong}]} for name in ("action_id", "action_ts")]
    for changed in [*({name: value} for name, value in members.items()), *actions]:
        with pytest.raises(InvalidRequestError):
            read_envelope("interactive", PRESS | changed)
