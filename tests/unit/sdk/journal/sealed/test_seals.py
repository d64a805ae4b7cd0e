"""Seals of a journal: what opens them, where, and what refuses."""

from __future__ import annotations

import json
import os
import re
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from countersign import JournalError, JournalSealed, MisuseError
from countersign.cli.app import app
from countersign.contract.canonical import canonicalize
from countersign.contract.keys import encode_base64url
from countersign.journal import Journal, sealing
from countersign.journal.location import JournalLocation
from countersign.journal.sealing import HIDDEN, SealContext, is_sealed, redacted, sealed_pointers
from countersign.journal.sealing_keys import KeyFile, SealingKey, add_key, read_keys

ABOUT = SealContext("t" * 64, "e" * 64, "args")
RAW = canonicalize({"amount": 5, "card": {"number": "4111", "cvv": "123"}, "to": ["a", "b"]})


@pytest.fixture
def journal(place: JournalLocation, keys: Path) -> Iterator[Journal]:
    opened = Journal(place, key_path=keys)
    yield opened
    opened.close()


@pytest.fixture(scope="module")
def memory() -> Iterator[Journal]:
    opened = Journal(":memory:")
    yield opened
    opened.close()


def sealed(journal: Journal, raw: bytes, *pointers: str, about: SealContext = ABOUT) -> bytes:
    with journal.database.unit(durable=True) as unit:
        return journal.seals.seal(unit, about, raw, pointers)


def test_what_is_sealed_is_not_there_and_comes_back_as_the_same_bytes(journal: Journal) -> None:
    stored = sealed(journal, RAW, "/card/number", "/to/1")
    assert is_sealed(stored)
    assert b"4111" not in stored
    assert sealed_pointers(stored) == ("/to/1", "/card/number")
    assert journal.seals.open(ABOUT, stored) == RAW
    assert redacted(stored) == {"amount": 5, "card": {"number": HIDDEN, "cvv": "123"}, "to": ["a", HIDDEN]}


def test_where_nothing_is_secret_the_bytes_stay_as_they_are_and_no_key_is_asked_for(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal.db", key_path=tmp_path / "no such file")
    assert sealed(journal, RAW) == RAW
    assert sealed(journal, RAW, "/absent", "/to/7", "/to/01", "/amount/deeper") == RAW
    assert journal.seals.open(ABOUT, RAW) == RAW
    assert redacted(RAW) == {"amount": 5, "card": {"number": "4111", "cvv": "123"}, "to": ["a", "b"]}
    journal.close()


ONCE = {
    ("/card", "/card/number"): ("/card",),
    ("/card/number", "/card/number", "/card/num"): ("/card/number",),
    ("", "/card"): ("",),
}


@pytest.mark.parametrize("pointers", ONCE)
def test_what_is_sealed_is_sealed_once(memory: Journal, pointers: tuple[str, ...]) -> None:
    stored = sealed(memory, RAW, *pointers)
    assert sealed_pointers(stored) == ONCE[pointers]
    assert memory.seals.open(ABOUT, stored) == RAW


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53) + 1, 2**53 - 1) | st.text(st.characters(codec="utf-8")),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text("ab/~", max_size=2), inner, max_size=3)
    ),
    max_leaves=8,
)


def every_pointer(value: Any, at: str = "") -> Iterator[str]:
    yield at
    if isinstance(value, dict):
        for name, child in value.items():
            yield from every_pointer(child, f"{at}/{name.replace('~', '~0').replace('/', '~1')}")
    elif isinstance(value, list):
        for n, child in enumerate(value):
            yield from every_pointer(child, f"{at}/{n}")


@settings(deadline=None)
@given(value=_JSON, data=st.data())
def test_any_value_is_restored_for_any_sealed_pointers(
    memory: Journal, value: Any, data: st.DataObject
) -> None:
    raw = canonicalize(value)
    chosen = data.draw(st.lists(st.sampled_from(sorted(every_pointer(value)))))
    assert memory.seals.open(ABOUT, sealed(memory, raw, *chosen)) == raw


ELSEWHERE = {
    "another transaction": SealContext("u" * 64, ABOUT.effect_id, "args"),
    "another effect": SealContext(ABOUT.txn, "f" * 64, "args"),
    "another column": SealContext(ABOUT.txn, ABOUT.effect_id, "result"),
}


@pytest.mark.parametrize("elsewhere", ELSEWHERE.values(), ids=ELSEWHERE)
def test_a_seal_opens_nowhere_else(journal: Journal, elsewhere: SealContext) -> None:
    stored, text = sealed(journal, RAW, "/card"), sealed_text(journal, "o-1")
    with pytest.raises(ValueError, match="changed or moved"):
        journal.seals.open(elsewhere, stored)
    with pytest.raises(ValueError, match="changed or moved"):
        journal.seals.open_text(elsewhere, text)


def test_two_values_of_one_column_cannot_change_places(memory: Journal) -> None:
    stored = sealed(memory, RAW, "/to/0", "/to/1")
    swapped = stored.replace(b"/to/0", b"/to/x").replace(b"/to/1", b"/to/0").replace(b"/to/x", b"/to/1")
    assert swapped != stored
    with pytest.raises(ValueError, match="changed or moved"):
        memory.seals.open(ABOUT, swapped)


def test_a_changed_seal_opens_nothing(memory: Journal) -> None:
    stored = sealed(memory, RAW, "/card")
    at = stored.index(b'",', 0) - 20  # in the middle of the ciphertext's text
    for place in range(at, at + 4):
        other = b"A" if stored[place : place + 1] != b"A" else b"B"
        with pytest.raises(ValueError):
            memory.seals.open(ABOUT, stored[:place] + other + stored[place + 1 :])


@pytest.mark.parametrize("rest", [b"", b"{}", b"[]", b'{"open":1,"sealed":[["/a"]]}', b"no JSON"])
def test_what_only_looks_like_a_seal_is_damage(memory: Journal, rest: bytes) -> None:
    mark = sealed(memory, RAW, "").partition(b"\n")[0]
    with pytest.raises(ValueError):
        memory.seals.open(ABOUT, mark + b"\n" + rest)


def sealed_text(journal: Journal, text: str, *, secret: bool = True) -> str:
    with journal.database.unit(durable=True) as unit:
        return journal.seals.seal_text(unit, ABOUT, text, secret=secret)


def test_text_is_sealed_where_it_is_secret_or_looks_like_a_seal(memory: Journal) -> None:
    assert sealed_text(memory, "o-1", secret=False) == "o-1"
    mark = sealed_text(memory, "4111")
    assert "4111" not in mark
    assert memory.seals.open_text(ABOUT, mark) == "4111"
    forged = sealed_text(memory, mark, secret=False)  # an agent names its resource like this
    assert forged != mark
    assert memory.seals.open_text(ABOUT, forged) == mark
    assert memory.seals.open_text(ABOUT, None) is None


def test_two_seals_of_one_value_are_never_equal_and_tell_its_length_to_a_block(memory: Journal) -> None:
    assert sealed(memory, RAW, "/card") != sealed(memory, RAW, "/card")
    lengths = {len(sealed(memory, canonicalize({"pin": "x" * n}), "/pin")) for n in range(60)}
    assert len(lengths) == 1
    assert len(sealed(memory, canonicalize({"pin": "x" * 63}), "/pin")) not in lengths


REPEATS = ["args:/card", "args:/card/number", "args:/card/number/first", "args:", "result:/id"]


@pytest.mark.parametrize("source", [*REPEATS, "args:/cards", "args:/order", 'const:"/card/number"'])
def test_a_compensation_inherits_what_repeats_a_secret(source: str) -> None:
    assert sealing.inherited_pointers({"a/b": source}, ["/card/number"]) == (
        ("/a~1b",) if source in REPEATS else ()
    )
    assert sealing.inherited_pointers({"a/b": source}, []) == ()


def test_a_resource_named_by_a_secret_is_detected(memory: Journal) -> None:
    assert sealing.is_secret_value(RAW, ["/card"], "4111")
    assert not sealing.is_secret_value(RAW, ["/card/cvv"], "4111")
    assert sealing.is_secret_value(RAW, ["/amount"], "5")
    assert not sealing.is_secret_value(RAW, [], "5")


def test_a_key_file_is_created_next_to_the_journal_for_its_owner_only(tmp_path: Path) -> None:
    place = tmp_path / "journal.db"
    journal = Journal(place)
    sealed(journal, RAW, "/absent")
    path = tmp_path / "journal.db.key"
    assert not path.exists()
    stored = sealed(journal, RAW, "/card")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    journal.close()
    again = Journal(place)
    assert again.seals.open(ABOUT, stored) == RAW
    again.close()
    (key,) = read_keys(path)
    for file in tmp_path.glob("journal.db*"):
        found = key.raw in file.read_bytes() or encode_base64url(key.raw).encode() in file.read_bytes()
        assert found is (file == path), file


def test_two_that_make_a_key_file_at_once_agree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, link = tmp_path / "keys", os.link
    first = KeyFile(path, named=False)

    def late(source: Any, target: Any) -> None:
        monkeypatch.setattr(os, "link", link)
        add_key(path)
        link(source, target)

    monkeypatch.setattr(os, "link", late)
    assert first.newest() is None
    assert [first.make()] == list(read_keys(path))


def test_a_named_key_file_that_is_not_there_is_never_made(place: JournalLocation, tmp_path: Path) -> None:
    journal = Journal(place, key_path=tmp_path / "missing")
    with pytest.raises(JournalSealed, match="COUNTERSIGN_JOURNAL_KEY") as refused:
        sealed(journal, RAW, "/card")
    assert "new-key" in str(refused.value)
    assert list(tmp_path.glob("*missing*")) == []
    journal.close()


@pytest.mark.parametrize("engine", ["postgresql"], indirect=True)
def test_a_journal_that_machines_share_has_no_key_of_its_own(place: JournalLocation) -> None:
    journal = Journal(place)
    assert sealed(journal, RAW) == RAW
    with pytest.raises(JournalSealed, match=r"shared.*COUNTERSIGN_JOURNAL_KEY"):
        sealed(journal, RAW, "/card")
    journal.close()


def test_without_the_key_nothing_opens_or_seals(journal: Journal, place: JournalLocation, keys: Path) -> None:
    """Else one host would write what the others cannot read."""
    stored = sealed(journal, RAW, "/card")
    (key,) = read_keys(keys)
    other = keys.with_name("other")
    add_key(other)
    for path in (other, keys.with_name("missing")):
        stranger = Journal(place, key_path=path)
        with pytest.raises(JournalSealed, match=rf"{key.id}.*COUNTERSIGN_JOURNAL_KEY") as refused:
            stranger.seals.open(ABOUT, stored)
        assert (refused.value.key_id, refused.value.code) == (key.id, "journal_sealed")
        assert isinstance(refused.value, JournalError)
        if path == other:
            with pytest.raises(JournalSealed, match="which is not here"):
                sealed(stranger, RAW, "/card")
        stranger.close()


def test_a_key_file_that_was_lost_is_not_made_anew(tmp_path: Path) -> None:
    place = tmp_path / "journal.db"
    journal = Journal(place)
    sealed(journal, RAW, "/card")
    journal.close()
    path = tmp_path / "journal.db.key"
    path.unlink()
    again = Journal(place)
    with pytest.raises(JournalSealed, match="which is not here"):
        sealed(again, RAW, "/card")
    assert not path.exists()
    again.close()


def test_a_seal_that_was_undone_notes_no_key(journal: Journal, keys: Path) -> None:
    with pytest.raises(ZeroDivisionError), journal.database.unit(durable=True) as unit:
        journal.seals.seal(unit, ABOUT, RAW, ["/card"])
        raise ZeroDivisionError
    assert journal.database.rows("SELECT * FROM meta") == []
    sealed(journal, RAW, "/card")
    assert [row["name"] for row in journal.database.rows("SELECT name FROM meta")] == [
        f"sealed_under:{read_keys(keys)[0].id}"
    ]


def test_a_new_key_seals_and_the_old_ones_open(journal: Journal, place: JournalLocation, keys: Path) -> None:
    before = sealed(journal, RAW, "/card")
    added = add_key(keys)
    rotated = Journal(place, key_path=keys)
    after = sealed(rotated, RAW, "/card")
    assert added.id.encode() in after
    assert added.id.encode() not in before
    assert [rotated.seals.open(ABOUT, one) for one in (before, after)] == [RAW, RAW]
    assert journal.seals.open(ABOUT, after) == RAW  # this process had read the file before; it looks again
    keys.write_bytes(encode_base64url(added.raw).encode() + b"\n")  # the first key is taken away
    rotated.close()
    late = Journal(place, key_path=keys)
    assert late.seals.open(ABOUT, after) == RAW
    with pytest.raises(JournalSealed, match="does not hold it"):
        late.seals.open(ABOUT, before)
    late.close()


A_KEY = b"A" * 43 + b"\n"
FULL = b"".join(encode_base64url(bytes([n]) * 32).encode() + b"\n" for n in range(64))
BAD: dict[str, tuple[bytes, str]] = {
    "nothing": (b"", "holds 0 keys"),
    "comments alone": (b"# a key\n\n", "holds 0 keys"),
    "too short": (b"c2hvcnQ\n", "line 1 .* is not a key"),
    "no base64url": (b"%" * 43, "line 1 .* is not a key"),
    "the second": (A_KEY + b"no-key-at-all\n", "line 2 .* is not a key"),
    "too many": (FULL + A_KEY, "holds 65 keys"),
}


@pytest.mark.parametrize(("content", "why"), BAD.values(), ids=BAD)
def test_a_file_that_is_no_key_file_is_refused_and_not_quoted(keys: Path, content: bytes, why: str) -> None:
    keys.write_bytes(content)
    with pytest.raises(JournalSealed) as refused:
        read_keys(keys)
    assert re.search(why, str(refused.value)), refused.value
    assert "no-key-at-all" not in str(refused.value)
    with pytest.raises(JournalSealed):
        add_key(keys)
    assert keys.read_bytes() == content


def test_a_full_key_file_takes_no_key_more_and_one_that_others_can_read_is_refused(keys: Path) -> None:
    keys.write_bytes(FULL)
    with pytest.raises(MisuseError, match="64 keys"):
        add_key(keys)
    assert len(read_keys(keys)) == 64
    keys.chmod(0o640)
    with pytest.raises(JournalSealed, match="chmod 600"):
        read_keys(keys)


def test_a_key_file_that_cannot_be_read_or_made_says_why(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    with pytest.raises(JournalSealed, match="cannot be read"):
        read_keys(tmp_path / "folder")
    with pytest.raises(JournalSealed, match="cannot be made"):
        KeyFile(tmp_path / "no folder" / "keys", named=False).make()
    with pytest.raises(MisuseError, match="cannot be written"):
        add_key(tmp_path / "no folder" / "keys")


def test_a_key_is_shown_by_its_id_alone() -> None:
    key = SealingKey.generate()
    assert key.id not in encode_base64url(key.raw)
    assert encode_base64url(key.raw) not in f"{key!r}{key}"
    assert repr(key.raw) not in repr(key)


def test_the_command_makes_and_rotates_a_key_file(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    first = CliRunner().invoke(app, ["journal", "new-key", str(path)])
    again = CliRunner().invoke(app, ["journal", "new-key", str(path)])
    one, two = read_keys(path)
    assert (first.exit_code, again.exit_code) == (0, 0)
    assert one.id in first.output
    assert two.id in again.output
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert all(encode_base64url(key.raw) not in first.output + again.output for key in (one, two))
    path.chmod(0o644)
    refused = CliRunner().invoke(app, ["journal", "new-key", str(path)])
    assert (refused.exit_code, len(path.read_bytes().splitlines())) == (1, 3)
    assert "chmod 600" in refused.output


def test_the_reasoning_of_a_model_is_sealed_and_bound_to_its_call(journal: Journal) -> None:
    journal.spending.record("a" * 32, None, "m", {"reasoning": "card 4111"}, [])
    journal.spending.record("b" * 32, None, "m", {"reasoning": None}, [])
    assert journal.spending.reasoning("a" * 32) == "card 4111"
    assert journal.spending.reasoning("b" * 32) is None
    assert journal.spending.reasoning("c" * 32) is None
    assert "4111" not in str([tuple(row) for row in journal.database.rows("SELECT * FROM llm_calls")])
    with journal.database.unit(durable=True) as unit:
        unit.execute(
            "UPDATE llm_calls SET reasoning = (SELECT reasoning FROM llm_calls WHERE call_id = ?) WHERE call_id = ?",
            ("a" * 32, "b" * 32),
        )
    with pytest.raises(JournalError, match="is damaged"):
        journal.spending.reasoning("b" * 32)


def test_the_mark_is_no_json_so_nothing_written_in_clear_is_taken_for_a_seal(memory: Journal) -> None:
    stored = sealed(memory, RAW, "")
    assert [is_sealed(one) for one in (stored, RAW, b"", None)] == [True, False, False, False]
    with pytest.raises(json.JSONDecodeError):
        json.loads(stored)
