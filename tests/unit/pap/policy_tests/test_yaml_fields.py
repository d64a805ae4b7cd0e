"""Untrusted YAML is parsed to plain values with lines, or refused with one sentence."""

import pytest

from policy_service.pap.folder_reader import MAX_FILE_BYTES
from policy_service.pap.policy_tests.yaml_fields import MAX_DEPTH, MAX_VALUES, YamlError, read_yaml

BOMB = "a: &a [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{now}: &{now} [{', '.join([f'*{before}'] * 10)}]\n"
    for before, now in zip("abcde", "bcdef", strict=True)
)

READ = {
    "words that look like yes and no are text": ("[no, yes, on, off, NO]", ["no", "yes", "on", "off", "NO"]),
    "times and days are text": ("[12:30, 2026-01-31]", ["12:30", "2026-01-31"]),
    "whole numbers": ("[0, 7, -7, 9007199254740993]", [0, 7, -7, 9007199254740993]),
    "a number with a leading nought is text": ("[010, 0x10, 1_000]", ["010", "0x10", "1_000"]),
    "fractions": ("[1.5, -0.25, 1e3]", [1.5, -0.25, 1000.0]),
    "no number is infinite": ("[.inf, .nan]", [".inf", ".nan"]),
    "true, false and null": ("[true, false, null, ~]", [True, False, None, None]),
    "what is quoted is text": ("['1', \"true\", 'null']", ["1", "true", "null"]),
    "a value that is left out": ("a:", {"a": None}),
    "an anchor and its alias": ("a: &x {b: 1}\nc: *x", {"a": {"b": 1}, "c": {"b": 1}}),
    "nothing": ("", None),
}

REFUSED = {
    "a key twice": ("a: 1\nb: 2\na: 3", 3, "'a' occurs twice"),
    **{
        tag: (f"a: {tag} [ls]", 1, "is not read here")
        for tag in ("!!python/object/apply:os.system", "!secret")
    },
    "a merge key": ("a: &a {b: 1}\nc:\n  <<: *a", 3, "merge keys"),
    "a list as a key": ("? [a]\n: 1", 1, "a key is one word"),
    "an alias of itself": ("a: &a [*a]", 1, f"more than {MAX_DEPTH} levels"),
    "too many values": ("[" + "1," * MAX_VALUES + "1]", 1, f"more than {MAX_VALUES} values; split"),
    "aliases of aliases": (BOMB, 1, f"{MAX_VALUES} values"),
    "an alias of nothing": ("a: *b", 1, "undefined alias"),
    **{
        text: (text, line, "this is not YAML")
        for text, line in (("a:\n\tb: 1", 2), ("a: [", 1), ("a: \x00", None))
    },
    "two documents": ("a: 1\n---\nb: 2", 2, "another document"),
    "ten thousand brackets": ("[" * 10_000, 1, f"more than {MAX_DEPTH} deep"),
    **{text: (text, 1, "half a character") for text in ('a: "\\ud800"', '"\\ud800": 1')},
    "a number that would be zero": ("a:\n - 1e-400", 2, "the number 1e-400 cannot be kept exactly"),
    "a number that would be another": ("a: 9007199254740990.6", 1, "cannot be kept exactly"),
}


@pytest.mark.parametrize(("text", "value"), READ.values(), ids=READ)
def test_value_is_read_as(text: str, value: object) -> None:
    assert read_yaml("cases/a.yaml", text.encode()) == value


@pytest.mark.parametrize(("text", "line", "message"), REFUSED.values(), ids=REFUSED)
def test_invalid_yaml_is_refused(text: str, line: int | None, message: str) -> None:
    with pytest.raises(YamlError, match=r".*") as refused:
        read_yaml("cases/a.yaml", text.encode())
    assert message in refused.value.problem.message
    assert refused.value.problem.file == "cases/a.yaml"
    assert refused.value.problem.line == line or "aliases" in refused.value.problem.message


def test_not_utf8_or_too_large_is_refused() -> None:
    for raw, message in ((b"a: \xff", "byte 3 is not UTF-8"), (b"#" * (MAX_FILE_BYTES + 1), "split it")):
        with pytest.raises(YamlError, match=message):
            read_yaml("cases/a.yaml", raw)


def test_each_key_has_its_line() -> None:
    table = read_yaml("cases/a.yaml", b"# first\na: 1\nb:\n  c: 2\n")
    assert (table.line_of("a"), table.line_of("b"), table["b"].line_of("c")) == (2, 3, 4)
    assert table["b"].line_of("missing") == 4
