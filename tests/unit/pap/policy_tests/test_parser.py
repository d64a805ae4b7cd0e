"""Parse case files: a mistake is reported with its line and never looks like an expectation that holds."""

from datetime import timedelta

import pytest

from countersign.contract import TaskKind
from policy_service.domain.policy_request import AgentPrincipal
from policy_service.pap.policy_tests import parser
from policy_service.pap.policy_tests.case import Case, ExpectedGate, PeopleCase
from tests.fakes.cases import HEAD, one_case, problems, read

RELEASE, REVIEW, DENY = (f"it: a\nexpect: {word}\n" for word in ("release", "review", "deny"))
A_MILLION = "each: {args.a: &l [1,2,3,4,5,6,7,8,9,10], args.b: *l, args.c: *l, args.d: *l}"
UNSENDABLE = ("args: {__entity: {type: T, id: a}}", "args: {amount: 9007199254740993}")
REFUSED = {
    "a misspelt expectation": (RELEASE + "reason: [x]", "'reason' is not a key of a case; did you mean 'reasons'?"),
    "a misspelt matrix": (RELEASE + "matrx: []", "did you mean 'matrix'?"),
    "an outcome that is none": ("it: a\nexpect: relase", ":9: expect: 'relase' is none of these; did you mean 'rel"),
    "no name": ("expect: release", "a case needs `it:`"),
    "no expectation": ("it: a", "a case needs `expect:`"),
    "a deny for any reason": (DENY, "a deny must say why"),
    "a review without people": (REVIEW, "a review must say who is asked"),
    "gates of a release": (RELEASE + "gates: [large]", "gates: belongs to `expect: review`"),
    "reasons of a review": (REVIEW + "needs: {finance: 1}\nreasons: [x]", "reasons: belongs to `expect: deny`"),
    "a deny that is valid for an hour": (DENY + "reasons: [x]\nvalid_for: 1h", "a deny releases nothing"),
    **{nothing: (REVIEW + nothing, "expects nothing") for nothing in ("gates: []", "needs: {}")},
    "a need of zero people": (REVIEW + "needs: {finance: 0}", "0 is not a whole number from 1"),
    "a need that is no number": (REVIEW + "needs: {finance: true}", "True is not a whole number"),
    "a need with a misspelt key": (REVIEW + "needs: {finance: {people: 1, reasons: true}}", "did you mean 'reason'?"),
    "an unknown agent": (RELEASE + "agent: robt", "there is no agent 'robt' in this file; did you mean 'robot'?"),
    "a time without a zone": (RELEASE + "now: 2026-01-31T12:00:00", "is not a time with a zone"),
    "a history that is no number": (RELEASE + "history: {spent: lots}", "history: 'lots' is not a whole number"),
    **{args: (RELEASE + args, "refused before any rule is evaluated") for args in UNSENDABLE},
    "facts about nothing": (RELEASE + "facts: {resorce: {}}", "did you mean 'resource'?"),
    "another way to prove it": (RELEASE + "method: password", "method: 'password' is none of these"),
    "a matrix that is a mapping": (RELEASE + "matrix: {a: 1}", "matrix: write a list"),
    "each without values": (RELEASE + "each: {agent: []}", "each: write a list of values"),
    "each of a million": (RELEASE + A_MILLION, "each: expands to 10000 cases"),
    "each of one place twice": (RELEASE + "each: {agent: [robot], agent.name: [x]}", "name the same place"),
}  # fmt: skip


@pytest.mark.parametrize(("text", "message"), REFUSED.values(), ids=REFUSED)
def test_invalid_case_is_refused(text: str, message: str) -> None:
    found = problems(one_case(text))
    assert any(message in line for line in found), found
    assert all(line.startswith("cases/a.yaml:") for line in found)


TWO = f"{HEAD}  - {{it: a, expect: release}}\n  - {{it: b, expect: release}}\n"


def test_all_problems_are_reported_and_a_matrix_problem_once() -> None:
    assert len(problems(f"{HEAD}  - it: a\n    expect: relase\n  - it: b\n    exspect: release\n")) == 3
    matrix = "matrix:\n  - {args: {amount: 1}}\n  - {args: {amount: 2}}"
    assert len(problems(one_case(f"it: a\nexpect: release\nnowe: x\n{matrix}"))) == 1


@pytest.mark.parametrize("text", ["", "- a", "cases: {}", "cases: []", "cases: [1]", "agents: [a]"])
def test_file_of_another_shape_is_refused(text: str) -> None:
    assert problems(text)


def test_names_defaults_and_the_number_of_cases_are_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    twice = "cases/a.yaml:9: `it: a` is taken at cases/a.yaml:8; say what differs"
    assert problems(TWO.replace("it: b", "it: a")) == [twice]
    assert "'expect' has no default" in problems("defaults: {expect: release}\ncases: [{it: a}]")[0]
    monkeypatch.setattr(parser, "MAX_CASES", 2)
    assert problems(TWO) == []
    monkeypatch.setattr(parser, "MAX_CASES", 1)
    assert problems(TWO) == ["cases: 2 cases; 1 is the limit"]


def test_case_can_set_every_part_of_a_question() -> None:
    (case,) = read(
        one_case(
            "it: a\nagent: {name: other, owner: 'urn:x|ann', teams: [north]}\nnow: 2026-01-31T12:00:00+01:00\n"
            "env: staging\ntxn_size: 3\nclaimed: {purpose: refund}\non_behalf_of: 'urn:x|bo'\nmethod: api_key\n"
            "history: {spent: 7}\nargs: {amount: 2}\nexpect: review\n"
            "needs: {cfo|finance: {people: 2, reason: true, answer_within: 4h}}\nvalid_for: 30m"
        )
    )
    assert isinstance(case, Case)
    assert case.agent == AgentPrincipal("other", "urn:x|ann", frozenset(), frozenset({"north"}))
    assert (case.now.isoformat(), case.env, case.txn_size) == ("2026-01-31T12:00:00+01:00", "staging", 3)
    assert (case.claimed.purpose, case.on_behalf_of, case.method) == ("refund", "urn:x|bo", "api_key")
    assert (case.history, case.args) == ({"spent": 7}, {"account": "a1", "amount": 2})
    assert case.args_bytes == b'{"account":"a1","amount":2}'
    gate = ExpectedGate(2, reason=True, answer_within=timedelta(hours=4))
    assert (case.expected.needs, case.place) == ({"cfo|finance": gate}, "cases/a.yaml:8")


def test_matrix_is_merged_over_its_case() -> None:
    text = (
        "it: a\nargs: {note: x}\nexpect: review\ngates: [large]\nmatrix:\n"
        "  - {it: small, args: {amount: 1}, expect: release}\n  - {args: {amount: 200}, gates: [other]}"
    )
    first, second = read(one_case(text))
    assert isinstance(first, Case) and isinstance(second, Case)
    assert (first.it, second.it, first.line, second.line) == ("a (small)", "a (2)", 13, 14)
    common = {"account": "a1", "note": "x"}
    assert (first.args, second.args) == (common | {"amount": 1}, common | {"amount": 200})
    assert first.expected.gates is None  # who writes `expect` anew writes the whole expectation anew
    assert (second.expected.outcome, second.expected.gates) == ("review", frozenset({"other"}))


def test_each_is_a_cartesian_product() -> None:
    cases = read(one_case("it: a\nexpect: release\neach: {args.amount: [1, 2], env: [dev, production]}"))
    assert {case.it: (case.args["amount"], case.env) for case in cases if isinstance(case, Case)} == {
        'a (args.amount=1, env="dev")': (1, "dev"),
        'a (args.amount=1, env="production")': (1, "production"),
        'a (args.amount=2, env="dev")': (2, "dev"),
        'a (args.amount=2, env="production")': (2, "production"),
    }


def test_one_file_holds_cases_about_people_and_calls() -> None:
    approve, settle = read(
        "agents: {robot: {name: robot}}\ndefaults: {tool: pay, args: {amount: 1}, agent: robot}\n"
        "approve:\n  - {it: a, groups: [finance], asked_by: [large], expect: allowed, policies: [p]}\n"
        "settle:\n  - {it: b, person: 'urn:x|bo', kind: standing, assurance: dev, expect: refused}\n"
    )
    assert isinstance(approve, PeopleCase) and isinstance(settle, PeopleCase)
    assert (approve.action, approve.allowed, approve.gates) == ("approve", True, frozenset({"large"}))
    assert (settle.action, settle.allowed, settle.kind) == ("settle", False, TaskKind.STANDING.value)
    assert settle.assurance == "dev"


@pytest.mark.parametrize("line", ["release", "allowed, kind: unknown", "allowed, args: {}"])
def test_case_about_people_with_a_foreign_key_is_refused(line: str) -> None:
    assert problems(f"approve:\n  - {{it: a, tool: pay, expect: {line}}}\n")
