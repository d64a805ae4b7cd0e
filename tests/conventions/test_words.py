"""Plain English, measured: words that a reader outside the project does not expect are not used."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.conventions.repository import ROOT, files

# What to write instead is in CONTRIBUTING.md.
BANNED = (
    *"stands whoever whomever whatever whichever whom nobody told tells telling beside room rooms".split(),
    *"neighbour neighbours mend mends mended riddle".split(),
    *("the house", "the exam"),
)
WORD = re.compile(rf"(?<![a-z])({'|'.join(BANNED)})(?![a-z])", re.IGNORECASE)
# Words that a file, a table or an API has: kinds, codes, columns, log events, keys of the journal.
FIXED = re.compile(
    r"nobody-(?:sees-unseen|may-(?:approve|settle|stop))|nobody_voted|nobody is asked|(?:lines|slack)_not_told|told_at"
    r"|[\"'`](?:told|stands)[\"'`]|unless I was told|\btold="
)
# The journal's tables and triggers are compared with those on the disk, comments included.
SCHEMAS = ("sdk/python/countersign/journal/schema.py", "sdk/python/countersign/journal/postgres_schema.py")
# This file: its list and its sample lines.
THIS_FILE = str(Path(__file__).relative_to(ROOT))


def banned(path: Path) -> list[str]:
    """Each use of a banned word in a file, with its line."""
    lines = enumerate(path.read_text().splitlines(), 1)
    found = [(number, hit[0]) for number, line in lines for hit in WORD.finditer(FIXED.sub("", line))]
    return [f"{path.relative_to(ROOT)}:{number}: {word}" for number, word in found]


def texts(*folders: str) -> list[Path]:
    """The Python files, documents and templates below these folders."""
    suffixes = {".py", ".md", ".html", ".toml"}
    written = [path for path in files() if path.suffix in suffixes]
    return [path for path in written if str(path.relative_to(ROOT)).startswith(folders)]


def test_no_banned_word_is_used() -> None:
    written = texts(
        *("policy_service/", "sdk/", "web/", "docs/", "examples/", "deploy/", "tests/"),
        *("README.md", "CHANGELOG.md"),
    )
    assert len(written) > 500
    assert [
        use for path in written for use in banned(path) if not use.startswith((*SCHEMAS, THIS_FILE))
    ] == []


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("the answer stands", ["stands"]),
        ("who is told_by it", ["told"]),
        ("Beside the review", ["Beside"]),
        ("understands besides retold standstill", []),
        ('row["told"]', []),
    ],
)
def test_a_banned_word_is_found(line: str, found: list[str]) -> None:
    assert WORD.findall(FIXED.sub("", line)) == found
