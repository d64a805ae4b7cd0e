"""Splitting policy text: statements, nesting depth, and what must never reach the parser."""

import json
import subprocess
import sys
from typing import Final

import cedarpy
import pytest

from policy_service.pap.scan import MAX_CHAIN, MAX_NESTING, scan

HEAD: Final = "permit (principal, action, resource)"


def when(condition: str) -> str:
    return f"{HEAD} when {{ {condition} }};"


def test_statements_and_annotations_have_lines() -> None:
    text = f'// a file\n\n@id("a")\n@title("A")\n{HEAD};\n{HEAD} when {{ "a;b" == "}}" }}; // end\n'
    (first, second), problems = scan("x.cedar", text)
    assert problems == []
    assert (first.line, first.annotation_lines) == (3, {"id": 3, "title": 4})
    assert first.text == f'@id("a")\n@title("A")\n{HEAD};'
    assert (second.line, second.text) == (6, f'{HEAD} when {{ "a;b" == "}}" }};')


@pytest.mark.parametrize("text", ["", "// nothing here", "\n \r\n\t\n"])
def test_empty_file_has_no_problems(text: str) -> None:
    assert scan("x.cedar", text) == ([], [])


# A bracket or a text that is not closed, a semicolon inside, and a word behind the last statement.
UNENDED = [HEAD, f"{HEAD} when {{ (true }};", f'{HEAD} when {{ "true }};', f'{HEAD} when {{ "true }};\\']
UNENDED += [f"{HEAD} when {{ true; }}", f"{HEAD};\npermit"]


@pytest.mark.parametrize("text", UNENDED)
def test_unterminated_statement_is_a_problem(text: str) -> None:
    statements, problems = scan("x.cedar", text)
    assert any("does not end" in problem.message for problem in problems)
    assert all(each.text == f"{HEAD};" for each in statements)


NESTED: dict[str, str] = {
    "round brackets": when("(" * 65 + "true" + ")" * 65),
    "square brackets": when("[" * 65 + "1" + "]" * 65 + " == 1"),
    "curly brackets": when("{a: " * 65 + "1" + "}" * 65 + " == 1"),
    "calls": when("context.a" + ".contains(context.a" * 65 + ")" * 65),
    "a thousand": when("(" * 1000 + "true" + ")" * 1000),
    "behind a comment that a carriage return ends": "// x\r" + when("(" * 1000 + "true" + ")" * 1000),
    "behind a string with an escaped quote": when('"\\"" == "\\"" && ' + "(" * 1000 + "true" + ")" * 1000),
    "brackets that never close": when("(" * 1000) + ")" * 1001 + ";",
}
CHAINS: dict[str, str] = {
    **{sign: when(f"true {sign} " * 501 + "true") for sign in ("&&", "||")},
    "plus": when("1 " + "+ 1 " * 501 + "== 2"),
    "times": when("1" + "*1" * 501 + " == 2"),
    **{member: when("context" + member * 501 + " == 1") for member in (".a", '["a"]')},
    "has": when("context has a" + ".a" * 501),
    "calls in a row": when("context.a" + ".contains(1)" * 251),
    "else if": when("if true then true else " * 501 + "true"),
    "nots": when("!" * 501 + "true"),
}


@pytest.mark.parametrize("text", (NESTED | CHAINS).values(), ids=NESTED | CHAINS)
def test_deeply_nested_text_never_reaches_the_parser(text: str) -> None:
    statements, problems = scan("x.cedar", text)
    assert statements == []
    assert any("limit" in problem.message for problem in problems)


def test_brackets_in_strings_and_comments_are_not_counted() -> None:
    statements, problems = scan("x.cedar", f'@doc("{"(" * 500}")\n// {"(" * 500}\n{HEAD};')
    assert (len(statements), problems) == (1, [])


def test_policy_at_the_limits_parses_in_a_thread_with_a_small_stack() -> None:
    deepest = when("(" * (MAX_NESTING - 1) + "true" + ")" * (MAX_NESTING - 1))
    wide = when("[" + ", ".join(["context.a.b == 1"] * (MAX_CHAIN // 6)) + "].isEmpty()")
    statements, problems = scan("x.cedar", deepest + wide)
    assert (len(statements), problems) == (2, [])
    script = (
        "import json, sys, threading, cedarpy\nthreading.stack_size(1024 * 1024)\n"
        "for text in json.loads(sys.stdin.buffer.read()):\n"
        "    it = threading.Thread(target=cedarpy.policies_to_pst, args=(text,)); it.start(); it.join()"
    )
    given = json.dumps([each.text for each in statements]).encode()
    done = subprocess.run([sys.executable, "-c", script], input=given, check=False, capture_output=True)
    assert (done.returncode, done.stderr) == (0, b"")


def test_statements_are_those_of_the_parser() -> None:
    texts = [
        f'@id("a")@doc("x;y")\n{HEAD} when {{ context.a == ";" }};',
        f"forbid(principal,action,resource)unless{{[1,2].contains(3)}}; {HEAD};",
        f'// permit;\n@ id ("b") {HEAD}\nwhen {{ "\\"" like "*;*" }} unless {{ 1 < 2 }};',
    ]
    text = "\n".join(texts)
    statements, problems = scan("x.cedar", text)
    assert problems == []

    def parsed(text: str) -> list[tuple[object, ...]]:
        policies = cedarpy.policies_to_pst(text).static_policies.values()
        return [(p.effect, p.clauses, p.annotations) for p in policies]

    assert parsed(text) == [one for each in statements for one in parsed(each.text)]
