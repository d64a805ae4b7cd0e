"""Seals of a journal: what opens them, where, and what refuses."""

import json
import os
import stat
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from countersign import JournalError, JournalSealed, MisuseError
from countersign.cli.app import app
from countersign.contract.digests import canonicalize
from countersign.contract.keys import encode_base64url
from countersign.journal import Journal, sealing, settlements
from countersign.journal.sealed_values import SealContext
from countersign.journal.sealing import is_sealed, sealed_pointers
from countersign.journal.sealing_keys import KeyFile, SealingKey, add_key, read_keys
from countersign.journal.shown import HIDDEN, redacted

ABOUT = SealContext("t" * 64, "e" * 64, "args")
RAW = canonicalize({"amount": 5, "card": {"number": "4111", "cvv": "123"}, "to": ["a", "b"]})


@pytest.fixture
def journal(place, keys: Path):
    opened = Journal(place, key_path=keys)
    yield opened
    opened.close()


@pytest.fixture(scope="module")
def memory():
    opened = Journal(":memory:")
    yield opened
    opened.close()


def sealed(journal: Journal, raw: bytes, *pointers: str, about: SealContext = ABOUT) -> bytes:
    with journal.database.unit(durable=True) as unit:
        return journal.seals.seal(unit, about, raw, pointers)


def test_sealed_values_are_hidden_and_restored_as_the_same_bytes(journal: Journal) -> None:
    stored = sealed(journal, RAW, "/card/number", "/to/1")
    assert [is_sealed(one) for one in (stored, RAW, b"", None)] == [True, False, False, False]
    assert b"4111" not in stored and sealed_pointers(stored) == ("/to/1", "/card/number")
    assert journal.seals.open(ABOUT, stored) == RAW
    assert redacted(stored) == {"amount": 5, "card": {"number": HIDDEN, "cvv": "123"}, "to": ["a", HIDDEN]}
    with pytest.raises(json.JSONDecodeError):  # so nothing written in clear is taken for a seal
        json.loads(stored)


def test_without_a_secret_the_bytes_stay_and_no_key_is_needed(tmp_path) -> None:
    journal = Journal(tmp_path / "journal.db", key_path=tmp_path / "no such file")
    for pointers in ((), ("/absent", "/to/7", "/to/01", "/amount/deeper")):
        assert sealed(journal, RAW, *pointers) == RAW
    assert (journal.seals.open(ABOUT, RAW), redacted(RAW)) == (RAW, json.loads(RAW))
    journal.close()


ONCE = [
    (("/card", "/card/number"), ("/card",)),
    (("/card/number", "/card/number", "/card/num"), ("/card/number",)),
    (("", "/card"), ("",)),
]


@pytest.mark.parametrize(("pointers", "kept"), ONCE)
def test_what_is_sealed_is_sealed_once(memory: Journal, pointers, kept) -> None:
    assert sealed_pointers(sealed(memory, RAW, *pointers)) == kept


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53) + 1, 2**53 - 1) | st.text(st.characters(codec="utf-8")),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text("ab/~", max_size=2), inner, max_size=3)
    ),
    max_leaves=8,
)


def every_pointer(value, at: str = ""):
    yield at
    if isinstance(value, dict):
        for name, child in value.items():
            yield from every_pointer(child, f"{at}/{name.replace('~', '~0').replace('/', '~1')}")
    elif isinstance(value, list):
        for n, child in enumerate(value):
            yield from every_pointer(child, f"{at}/{n}")


@settings(deadline=None)
@given(value=_JSON, data=st.data())
def test_any_value_is_restored(memory: Journal, value, data: st.DataObject) -> None:
    raw = canonicalize(value)
    chosen = data.draw(st.lists(st.sampled_from(sorted(every_pointer(value)))))
    assert memory.seals.open(ABOUT, sealed(memory, raw, *chosen)) == raw


ELSEWHERE = [
    SealContext("u" * 64, ABOUT.effect_id, "args"),
    SealContext(ABOUT.txn, "f" * 64, "args"),
    SealContext(ABOUT.txn, ABOUT.effect_id, "result"),
]


@pytest.mark.parametrize("elsewhere", ELSEWHERE, ids=["transaction", "effect", "column"])
def test_a_seal_opens_nowhere_else(journal: Journal, elsewhere: SealContext) -> None:
    stored, text = sealed(journal, RAW, "/card"), sealed_text(journal, "o-1")
    for opened in (
        lambda: journal.seals.open(elsewhere, stored),
        lambda: journal.seals.open_text(elsewhere, text),
    ):
        with pytest.raises(ValueError, match="changed or moved"):
            opened()


def test_a_changed_seal_opens_nothing(memory: Journal) -> None:
    two, stored = sealed(memory, RAW, "/to/0", "/to/1"), sealed(memory, RAW, "/card")
    swapped = two.replace(b"/to/0", b"/to/x").replace(b"/to/1", b"/to/0").replace(b"/to/x", b"/to/1")
    at = stored.index(b'",', 0) - 20  # in the middle of the ciphertext's text
    changed = [
        stored[:place] + (b"B" if stored[place : place + 1] == b"A" else b"A") + stored[place + 1 :]
        for place in range(at, at + 4)
    ]
    for other in (swapped, *changed):
        with pytest.raises(ValueError):
            memory.seals.open(ABOUT, other)
        assert other not in (stored, two)


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
    inherited = ("/a~1b",) if source in REPEATS else ()
    assert settlements.inherited_pointers({"a/b": source}, ["/card/number"]) == inherited
    assert settlements.inherited_pointers({"a/b": source}, []) == ()


def test_a_resource_named_by_a_secret_is_detected(memory: Journal) -> None:
    values = [(["/card"], "4111"), (["/card/cvv"], "4111"), (["/amount"], "5"), ([], "5")]
    assert [sealing.is_secret_value(RAW, *one) for one in values] == [True, False, True, False]


def test_a_key_file_is_created_once_next_to_the_journal_for_its_owner_only(tmp_path) -> None:
    place, path = tmp_path / "journal.db", tmp_path / "journal.db.key"
    journal = Journal(place)
    sealed(journal, RAW, "/absent")
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
    path.unlink()
    late = Journal(place)
    with pytest.raises(JournalSealed, match="which is not here"):
        sealed(late, RAW, "/card")
    assert not path.exists()
    late.close()


def test_two_that_make_a_key_file_at_once_agree(tmp_path, monkeypatch) -> None:
    path, link = tmp_path / "keys", os.link
    first = KeyFile(path, named=False)

    def late(source, target) -> None:
        monkeypatch.setattr(os, "link", link)
        add_key(path)
        link(source, target)

    monkeypatch.setattr(os, "link", late)
    assert first.newest() is None
    assert [first.make()] == list(read_keys(path))


def test_a_named_key_file_that_is_not_there_is_never_made(place, tmp_path) -> None:
    journal = Journal(place, key_path=tmp_path / "missing")
    with pytest.raises(JournalSealed, match="COUNTERSIGN_JOURNAL_KEY") as refused:
        sealed(journal, RAW, "/card")
    assert "new-key" in str(refused.value)
    assert list(tmp_path.glob("*missing*")) == []
    journal.close()


@pytest.mark.parametrize("engine", ["postgresql"], indirect=True)
def test_a_journal_that_machines_share_has_no_key_of_its_own(place) -> None:
    journal = Journal(place)
    assert sealed(journal, RAW) == RAW
    with pytest.raises(JournalSealed, match=r"shared.*COUNTERSIGN_JOURNAL_KEY"):
        sealed(journal, RAW, "/card")
    journal.close()


def test_without_the_key_nothing_opens_or_seals(journal: Journal, place, keys: Path) -> None:
    """Else one host would write what the others cannot read."""
    stored, other = sealed(journal, RAW, "/card"), keys.with_name("other")
    (key,) = read_keys(keys)
    add_key(other)
    for path in (other, keys.with_name("missing")):
        stranger = Journal(place, key_path=path)
        with pytest.raises(JournalSealed, match=rf"{key.id}.*COUNTERSIGN_JOURNAL_KEY") as refused:
            stranger.seals.open(ABOUT, stored)
        assert (refused.value.key_id, refused.value.code) == (key.id, "journal_sealed")
        if path == other:
            with pytest.raises(JournalSealed, match="which is not here"):
                sealed(stranger, RAW, "/card")
        stranger.close()


def test_a_seal_that_was_undone_notes_no_key(journal: Journal, keys: Path) -> None:
    with pytest.raises(ZeroDivisionError), journal.database.unit(durable=True) as unit:
        journal.seals.seal(unit, ABOUT, RAW, ["/card"])
        raise ZeroDivisionError
    assert journal.database.rows("SELECT * FROM meta") == []
    sealed(journal, RAW, "/card")
    (row,) = journal.database.rows("SELECT name FROM meta")
    assert row["name"] == f"sealed_under:{read_keys(keys)[0].id}"


def test_a_new_key_seals_and_the_old_ones_open(journal: Journal, place, keys: Path) -> None:
    before, added = sealed(journal, RAW, "/card"), add_key(keys)
    rotated = Journal(place, key_path=keys)
    after = sealed(rotated, RAW, "/card")
    assert [added.id.encode() in one for one in (before, after)] == [False, True]
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
BAD = {
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
    for act in (read_keys, add_key):
        with pytest.raises(JournalSealed, match=f"(?s){why}") as refused:
            act(keys)
        assert "no-key-at-all" not in str(refused.value)
    assert keys.read_bytes() == content


def test_a_full_key_file_takes_no_key_more_and_one_that_others_can_read_is_refused(keys: Path) -> None:
    keys.write_bytes(FULL)
    with pytest.raises(MisuseError, match="64 keys"):
        add_key(keys)
    assert len(read_keys(keys)) == 64
    keys.chmod(0o640)
    with pytest.raises(JournalSealed, match="chmod 600"):
        read_keys(keys)


def test_a_key_file_that_cannot_be_read_or_made_says_why(tmp_path) -> None:
    (tmp_path / "folder").mkdir()
    missing = tmp_path / "no folder" / "keys"
    with pytest.raises(JournalSealed, match="cannot be read"):
        read_keys(tmp_path / "folder")
    with pytest.raises(JournalSealed, match="cannot be made"):
        KeyFile(missing, named=False).make()
    with pytest.raises(MisuseError, match="cannot be written"):
        add_key(missing)


def test_a_key_is_shown_by_its_id_alone() -> None:
    key = SealingKey.generate()
    text = encode_base64url(key.raw)
    assert key.id not in text and text not in f"{key!r}{key}" and repr(key.raw) not in repr(key)


def test_the_command_makes_and_rotates_a_key_file(tmp_path) -> None:
    path, command = tmp_path / "keys", ["journal", "new-key", str(tmp_path / "keys")]
    made = [CliRunner().invoke(app, command) for _ in range(2)]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    for key, result in zip(read_keys(path), made, strict=True):
        assert (result.exit_code, key.id in result.output) == (0, True)
        assert encode_base64url(key.raw) not in made[0].output + made[1].output
    path.chmod(0o644)
    refused = CliRunner().invoke(app, command)
    assert (refused.exit_code, len(path.read_bytes().splitlines())) == (1, 3)
    assert "chmod 600" in refused.output


def test_the_reasoning_of_a_model_is_sealed_and_bound_to_its_call(journal: Journal) -> None:
    first, second, spending = "a" * 32, "b" * 32, journal.spending
    spending.record(first, None, "m", {"reasoning": "card 4111"}, [])
    spending.record(second, None, "m", {"reasoning": None}, [])
    assert [spending.reasoning(one) for one in (first, second, "c" * 32)] == ["card 4111", None, None]
    assert "4111" not in str([tuple(row) for row in journal.database.rows("SELECT * FROM llm_calls")])
    copied = "(SELECT reasoning FROM llm_calls WHERE call_id = ?)"
    with journal.database.unit(durable=True) as unit:
        unit.execute(f"UPDATE llm_calls SET reasoning = {copied} WHERE call_id = ?", (first, second))
    with pytest.raises(JournalError, match="is damaged"):
        spending.reasoning(second)
