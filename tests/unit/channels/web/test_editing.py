"""The proposal form: an unchanged field yields its value, and a field hides nothing."""

from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from policy_service.channels.presentation.deceptive_text import hidden_positions
from policy_service.channels.presentation.marked_text import typed_json
from policy_service.channels.web.presenters.proposal_form import FieldView, field_views, read_fields
from policy_service.queries.proposal_views import ProposalField, ProposalForm

FILLER, VARIANT, OVERRIDE = "\u3164", "\ufe0f", "\u202e"


def drawn(value: Any, kind: Any = "text") -> tuple[ProposalForm, FieldView]:
    field = ProposalField("memo", kind, required=True, present=True, value=value)
    form = ProposalForm("rev_1", 1, "0" * 64, "0" * 64, "tool", "robot", None, (), (field,), ())
    (view,) = field_views(form)
    return form, view


@given(st.text())
@example("one\ntwo")
@example(f"fdp{OVERRIDE}.exe")
@example(f"ab{FILLER}c")
@example(f"a{VARIANT}b")
@example("a\U000e0041b")
@example("a\rb\r\nc")
@example("  a ")
@example('say "a\\u200b"')
@example("\U0001f469\u200d\U0001f527")
def test_an_unchanged_field_yields_its_value(value: str) -> None:
    form, view = drawn(value)
    assert read_fields(form, {"value_0": view.text}) == ({"memo": value}, {})
    assert read_fields(form, {"value_0": view.text.replace("\n", "\r\n")}) == ({"memo": value}, {})


INVISIBLE = [f"ab{FILLER}c", f"a{VARIANT}b", f"a{OVERRIDE}b", [f"a{OVERRIDE}b"], {"k": FILLER}]


@pytest.mark.parametrize("value", INVISIBLE)
def test_a_field_contains_no_invisible_characters(value: Any) -> None:
    form, view = drawn(value, "text" if isinstance(value, str) else "json")
    assert (view.shape, hidden_positions(view.text)) == ("json", set())
    assert "\\u" in view.text
    assert read_fields(form, {"value_0": view.text}) == ({"memo": value}, {})


def test_json_keeps_its_lines_and_shows_what_is_hidden() -> None:
    assert typed_json('{\r\n\t"a": "x\u200by"\n}') == '{\n\t"a": "x\\u200by"\n}'
