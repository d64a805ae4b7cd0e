"""Formatting policies keeps rules and comments and is idempotent."""

from pathlib import Path

import pytest
from cedarpy import policies_to_pst

from policy_service.pap import scan
from policy_service.pap.problems import BundleError
from policy_service.pap.scan import comments, format_file

MESSY = """\
// The head.


// More of it.
@id("one") @title("One")
permit(principal,action,
resource); // trailing
// above the second
@id("two")
forbid (principal in Role::"a-very-long-role-name-indeed", action in [Action::"one", Action::"two"],
resource is Account)
when { // why
context.input.x>5&&context.input.y == "// no comment" };



// the end"""

NEAT = """\
// The head.

// More of it.
@id("one")
@title("One")
permit (principal, action, resource);  // trailing

// above the second
@id("two")
forbid (
    principal in Role::"a-very-long-role-name-indeed",
    action in [Action::"one", Action::"two"],
    resource is Account
)
when
{ // why
    context.input.x > 5 && context.input.y == "// no comment"
};

// the end
"""


TEXTS = {
    "messy": MESSY,
    "neat": NEAT,
    "nothing": "",
    "comments only": "\n\n// one\n\n\n// two\n",
    "two on a line": '@id("a") permit (principal, action, resource); @id("b") forbid (principal, action, resource);',
    "windows": MESSY.replace("\n", "\r\n"),
    "comments everywhere": '@id("a") // one\nforbid // two\n( // three\nprincipal, // four\naction, // five\n'
    "resource // six\n) // seven\nwhen // eight\n{ // nine\ntrue // ten\n|| // eleven\nfalse // twelve\n}; // last\n",
    "a text of two lines": '@id("a") @doc("one\n  two") permit (principal, action, resource);',
    "a carriage return ends a comment": '// c\r@id("a") permit (principal, action, resource);',
    "long": '@id("a") forbid (principal, action, resource) when { '
    + " || ".join(f"context.input.amount == {n}" for n in range(60))
    + " };",
}


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
def test_formatting_keeps_rules_and_comments_and_is_idempotent(text: str) -> None:
    once = format_file("a.cedar", text.encode())
    assert policies_to_pst(once.text) == policies_to_pst(text)
    assert [word.strip() for _, word in comments(once.text)] == [word.strip() for _, word in comments(text)]
    assert format_file("a.cedar", once.text.encode()).text == once.text


SPOILED = [("amount > 5", "amount > 6"), ("// mine", ""), ("amount ", "amount  ")]  # the last: never settles


@pytest.mark.parametrize(("old", "new"), SPOILED)
def test_statement_that_would_change_is_left(monkeypatch: pytest.MonkeyPatch, old: str, new: str) -> None:
    monkeypatch.setattr(scan, "format_policies", lambda text, width, indent: text.replace(old, new))
    condition = "context.input.amount > 5 // mine\n"
    text = f'// head\n@id("a") forbid (principal, action, resource) when {{ {condition}}};\n'
    done = format_file("a.cedar", text.encode())
    assert (done.text, [(one.line, one.code) for one in done.left]) == (text, [(2, "not-formatted")])


REFUSED = {
    "no Cedar": (b"permit (principal, action);", "a.cedar:1: this is not Cedar"),
    "no end": (b"permit (principal, action, resource)", "does not end"),
    "too deep": (b"permit (principal, action, resource) when {" + b"(" * 900 + b"true" + b")" * 900 + b"};", "nested"),
    "no UTF-8": (b"\xff", "byte 0 is not UTF-8"),
    "hidden": ('// \u202e\n'.encode(), "U+202E"),
}  # fmt: skip


@pytest.mark.parametrize(("raw", "message"), REFUSED.values(), ids=REFUSED)
def test_unreadable_file_is_refused(raw: bytes, message: str) -> None:
    with pytest.raises(BundleError, match=message.replace("+", r"\+")):
        format_file("a.cedar", raw)


def test_shipped_policies_are_formatted() -> None:
    done = format_file("a.cedar", MESSY.encode())
    assert (done.text, done.left) == (NEAT, ())
    for file in ("policies/support.cedar", "policies/examples/airline/airline.cedar"):
        raw = Path(file).read_bytes()
        assert format_file(file, raw).text.encode() == raw
