"""What an agent chose (a key, a tool's name) is written out in the developer's terminal and never obeyed by it."""

import pytest

from countersign.journal.export import escape_unprintable
from policy_service.channels.admin.dev import output

ERASE = "\x1b[8A\x1b[J\r\x9b2K"
# Each erases, begins a line, turns it around, sets the title, or is half a character; the last is a word of people.
HOSTILE = [
    *((ERASE, r"\x1b[8A\x1b[J\r\x9b2K"), ("a\ndev | all is well", r"a\ndev | all is well")),
    *(("\u202eoga", r"\u202eoga"), ("\x07\x1b]0;x\x07", r"\x07\x1b]0;x\x07"), ("\ud800", r"\ud800")),
    ("Zoë Müller – 京: http://127.0.0.1", "Zoë Müller – 京: http://127.0.0.1"),
]


@pytest.mark.parametrize(("text", "shown"), HOSTILE)
def test_unprintable_characters_are_shown(text: str, shown: str, capsys: pytest.CaptureFixture[str]) -> None:
    output.print_lines(f"{text}: approved")
    assert capsys.readouterr().out == f"dev | {shown}: approved\n"
    assert escape_unprintable(text) == shown, "as the SDK's own terminal does"


@pytest.mark.parametrize("unseen", [True, False])
def test_unseen_is_explained_where_it_is_asked(unseen: bool, capsys: pytest.CaptureFixture[str]) -> None:
    output.print_review("pay", ["unseen"], "http://127.0.0.1:8420/reviews/r-1", unseen=unseen)
    assert ('@unseen("ARGUMENT")' in capsys.readouterr().out) is unseen


def test_the_warning_of_an_unknown_tool_is_intact_for_any_name(capsys: pytest.CaptureFixture[str]) -> None:
    output.warn_unknown_tool(ERASE, "policies")
    output.warn_manifest_not_in_force(ERASE, "policies", f"tools/{ERASE}.json: not a tool manifest")
    output.print_review(ERASE, ["unseen"], "http://127.0.0.1:8420/reviews/r-1", unseen=True)
    out = capsys.readouterr().out
    assert out.count("!" * 100) == 4
    assert all(char.isprintable() or char == "\n" for char in out)
    assert all(line.startswith("dev | ") for line in out.splitlines())
