"""Cases run on the service's engine; differences are reported as found and expected."""

from pathlib import Path

import pytest

from policy_service.pap.problems import BundleError
from tests.fakes.bundles import BundleFolder, facts_of
from tests.fakes.cases import HEAD, ask, one_case, small_bundle

FACTS = (
    facts_of("Account", state="String", limit="decimal?", opened="datetime?")
    + """
[entities.Agent.attributes]
trusted = "Bool"
[[source]]
name = "trust"
kind = "sql"
url_env = "TRUST_URL"
entity = "Agent"
query = "SELECT trusted FROM agents WHERE id = :agent"
"""
)
KNOWING = """
@id("pay") permit (principal, action == Action::"pay", resource)
when { principal.trusted && resource.state == "open" };
@id("within-limit") forbid (principal, action == Action::"pay", resource)
when { resource has limit && resource.limit.lessThan(decimal("5.00")) };
@id("young") forbid (principal, action == Action::"pay", resource)
when { resource has opened && context.now.durationSince(resource.opened) < duration("1d") };
@id("overflows") forbid (principal, action == Action::"pay", resource)
when { context.input.amount * context.input.amount < 0 };
"""


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> BundleFolder:
    return small_bundle(tmp_path_factory.mktemp("small"))


@pytest.fixture(scope="module")
def knowing(tmp_path_factory: pytest.TempPathFactory) -> BundleFolder:
    folder = BundleFolder(tmp_path_factory.mktemp("knowing")).policies(KNOWING).write("facts.toml", FACTS)
    return folder.write("facts/accounts.json", {"a1": {"state": "open"}, "a2": {"state": "closed"}})


LOTS = "args: {amount: lots}\nexpect: deny\n"
MILLION = "args: {amount: 1000000}\nexpect: deny\n"
ABOVE = "args: {amount: 101}\nexpect: review\n"
HOLDS = [
    "expect: release\npolicies: [payers-may-pay]",
    "args: {amount: 100}\nexpect: release\nvalid_for: 1h",
    ABOVE + "gates: [large]",
    ABOVE + "needs: {finance: 2}",
    ABOVE + "needs: {finance: {people: 2, reason: true}}" + "\nanswer_within: 24h",
    MILLION + "reasons: [never-a-million]\npolicies: [never-a-million]",
    "agent: {name: x}\nexpect: deny\nreasons: [no_permit]",
    LOTS + "reasons: [invalid_args]",
    "args: {amount: 1.5}\nexpect: deny\nreasons: [invalid_args]",
    "tool: pray\nexpect: deny\nreasons: [unknown_tool]",
    "tool: pray\nenv: dev\nexpect: review\ngates: [unknown-tool]",
    "args: {items: [a]}\nexpect: review\ngates: [unseen]\nneeds: {unseen: {people: 1, shared: true}}",
]
FAILS = [
    ("expect: deny\nreasons: [no_permit]", "expect: found release, expected deny"),
    (ABOVE + "gates: [huge]", "gates: found [large], expected [huge]"),
    (ABOVE + "gates: [large, huge]", "gates: found [large], expected [huge, large]"),
    (ABOVE + "needs: {finance: 1}", "needs: finance: found 2, expected 1"),
    (ABOVE + "needs: {cfo: 2}", "needs: found 2 of finance, expected none"),
    (ABOVE + "needs: {cfo: 2}", "needs: found nothing of cfo, expected 2"),
    (ABOVE + "needs: {finance: {people: 2}}", "{people: 2, reason: true"),
    (ABOVE + "gates: [large]\nstep_up: passkey", "step_up: found nothing"),
    ("expect: release\nvalid_for: 30m", "valid_for: found 1:00:00, expected 0:30:00"),
    (LOTS + "reasons: [no_permit]", "reasons: found [invalid_args], expected [no_permit] ("),
    ("expect: release\npolicies: [large]", "[payers-may-pay], expected also [large]"),
    (MILLION + "errors: [never-a-million]", "errors: found [], expected [never"),
]


@pytest.mark.parametrize("text", HOLDS)
def test_case_holds(small: BundleFolder, text: str) -> None:
    (answered,) = ask(small, one_case(f"it: a\n{text}"))
    assert answered.differences == ()


@pytest.mark.parametrize(("text", "message"), FAILS)
def test_case_does_not_hold(small: BundleFolder, text: str, message: str) -> None:
    (answered,) = ask(small, one_case(f"it: a\n{text}"))
    assert not answered.holds
    assert message in "; ".join(answered.differences)


UNPERMITTED, UNKNOWN = "expect: deny\nreasons: [no_permit]", "expect: deny\nreasons: [facts_unavailable]"
OPENED = "facts: {agent: {trusted: true}, resource: {opened: 2026-01-01T00:00:00Z}}"
ERRS = "args: {amount: 9007199254740991}\nfacts: {agent: {trusted: true}}"
OPEN = "facts: {agent: {trusted: true}, resource: {state: open}}"
GIVEN = {
    "an agent the case trusts": ("facts: {agent: {trusted: true}}", "expect: release"),
    "an agent the case does not trust": ("facts: {agent: {trusted: false}}", UNPERMITTED),
    "an account of the file": ("args: {account: a2}\nfacts: {agent: {trusted: true}}", UNPERMITTED),
    "another state than the file's": (f"args: {{account: a2}}\n{OPEN}", "expect: release"),
    "an account no file has": (f"args: {{account: a9}}\n{OPEN}", "expect: release"),
    "an unknown account": ("args: {account: a9}\nfacts: {agent: {trusted: true}}", UNKNOWN),
    "a fact taken away": (OPEN.replace("open", "null"), UNKNOWN),
    "a decimal": (OPEN.replace("state: open", "limit: 4.9999"), "expect: deny\nreasons: [within-limit]"),
    "a day ago to the second": (f"now: 2026-01-02T00:00:00Z\n{OPENED}", "expect: release"),
    "a second less": (f"now: 2026-01-01T23:59:59Z\n{OPENED}", "expect: deny\nreasons: [young]"),
    "a rule that errs": (ERRS, "expect: deny\nerrors: [overflows]\nreasons: [policy_error]"),
    "a source that cannot be asked": ("", UNKNOWN),
}


@pytest.mark.parametrize(("given", "expected"), GIVEN.values(), ids=GIVEN)
def test_written_facts_override_the_files(knowing: BundleFolder, given: str, expected: str) -> None:
    """No database is queried: there is none here, and TRUST_URL is not set."""
    (answered,) = ask(knowing, one_case(f"it: a\n{given}\n{expected}".replace("\n\n", "\n")))
    assert answered.differences == ()


MISFITS = [
    ("{resource: {stat: open}}", "facts.toml declares no such attribute of Account"),
    ("{resource: {state: 5}}", "facts: state: 5 does not fit: 5 is not a text"),
    ("{resource: {opened: 100000000000000000000}}", "does not fit"),
    ("{resource: {limit: 1e999}}", "does not fit"),
    ("{agent: {trusted: 2}}", "facts: trusted: 2 does not fit: 2 is not true or false"),
    ("{resource: {opened: 2026-01-01}}", "is not a time with a zone"),
]


@pytest.mark.parametrize(("facts", "message"), MISFITS)
def test_invalid_facts_are_refused_by_line(knowing: BundleFolder, facts: str, message: str) -> None:
    with pytest.raises(BundleError) as refused:
        ask(knowing, one_case(f"it: a\nfacts: {facts}\nexpect: release"))
    (problem,) = refused.value.problems
    assert (problem.file, problem.line) == ("cases/a.yaml", 8)
    assert message in problem.message


def test_unknown_meter_is_refused(small: BundleFolder) -> None:
    """Otherwise it would have no effect, and the case would seem to test it."""
    with pytest.raises(BundleError, match="history: no meter 'spent' counts pay") as refused:
        ask(small, one_case("it: a\nhistory: {spent: 1}\nexpect: release"))
    assert refused.value.problems[0].line == 8


PEOPLE = """
@id("approvers") permit (principal in Group::"finance", action == Action::"approve", resource);
@id("not-the-robot") forbid (principal, action == Action::"approve", resource)
when { resource.tool == "pay" && resource.gates.contains("huge") };
@id("settlers") permit (principal in Group::"cfo", action == Action::"settle", resource)
when { resource.kind == "standing" && context.assurance == "oidc" };
"""
ABOUT_PEOPLE = [
    ("approve", "groups: [finance], expect: allowed, policies: [approvers]", ""),
    ("approve", "expect: refused", ""),
    ("approve", "groups: [finance], asked_by: [huge], expect: refused, policies: [not-the-robot]", ""),
    ("settle", "groups: [cfo], kind: standing, expect: allowed", ""),
    ("settle", "groups: [cfo], kind: standing, assurance: dev, expect: refused", ""),
    ("approve", "groups: [cfo], expect: allowed", "found refused, expected allowed"),
    ("approve", "groups: [finance], expect: refused", "found allowed by [approvers]"),
    ("approve", "groups: [finance], expect: allowed, policies: [x]", "expected also [x]"),
]


def test_cases_about_people(tmp_path: Path) -> None:
    folder = small_bundle(tmp_path).write("people.cedar", PEOPLE)
    for kind, text, message in ABOUT_PEOPLE:
        (answered,) = ask(folder, f"{kind}:\n  - {{it: a, tool: pay, {text}}}\n")
        assert message in "; ".join(answered.differences), text
        assert answered.holds is not bool(message), text


def test_cases_keep_their_order(small: BundleFolder) -> None:
    answered = ask(small, f"{HEAD}  - {{it: b, expect: release}}\n  - {{it: a, expect: release}}\n")
    assert [each.case.it for each in answered] == ["b", "a"]
