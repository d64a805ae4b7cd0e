"""The form for other arguments: a field that is sent as it was drawn gives back its value, and hides nothing in it."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policy_service.channels.showing.deceptions import hidden_positions
from policy_service.channels.showing.marking import typed
from policy_service.channels.web.drawing.editing import field_views, read_fields
from policy_service.workflow.pages.edit_views import EditField, EditForm

HANGUL_FILLER, VARIANT, OVERRIDE = "\u3164", "\ufe0f", "\u202e"


def form_of(*fields: EditField) -> EditForm:
    return EditForm("rev_1", 1, "0" * 64, "0" * 64, "tool", "robot", None, (), fields, ())


def text_field(value: Any, kind: Any = "text") -> EditField:
    return EditField("memo", kind, required=True, present=True, value=value)


VALUES = {
    "plain text": "parcel 7",
    "lines": "one\ntwo",
    "a direction override": f"fdp{OVERRIDE}.exe",
    "a filler that counts as a letter": f"ab{HANGUL_FILLER}c",
    "a variation selector": f"a{VARIANT}b",
    "a tag": "a\U000e0041b",
    "an old line break": "a\rb\r\nc",
    "nothing": "",
    "spaces at the ends": "  a ",
    "quotes and a backslash": 'say "a\\u200b"',
    "an emoji made of several": "\U0001f469\u200d\U0001f527",
}


@pytest.mark.parametrize("value", VALUES.values(), ids=VALUES)
def test_what_is_sent_as_it_was_drawn_is_the_value(value: str) -> None:
    form = form_of(text_field(value))
    (view,) = field_views(form)
    assert read_fields(form, {"value_0": view.text}) == ({"memo": value}, {})


@pytest.mark.parametrize(
    "value", [f"ab{HANGUL_FILLER}c", f"a{VARIANT}b", f"a{OVERRIDE}b", [f"a{OVERRIDE}b"], {"k": HANGUL_FILLER}]
)
def test_a_field_holds_no_character_that_nobody_can_see(value: Any) -> None:
    kind = "text" if isinstance(value, str) else "json"
    form = form_of(text_field(value, kind))
    (view,) = field_views(form)
    assert (view.shape, hidden_positions(view.text)) == ("json", set())
    assert "\\u" in view.text
    assert read_fields(form, {"value_0": view.text}) == ({"memo": value}, {})


@given(st.text())
def test_any_text_comes_back_as_it_was(value: str) -> None:
    form = form_of(text_field(value))
    (view,) = field_views(form)
    assert read_fields(form, {"value_0": view.text.replace("\n", "\r\n")}) == ({"memo": value}, {})


def test_json_keeps_its_lines_and_shows_what_is_hidden() -> None:
    assert typed('{\r\n\t"a": "x\u200by"\n}') == '{\n\t"a": "x\\u200by"\n}'
