"""Loading a bundle: all problems are reported with their place, and nothing of an invalid bundle is used."""

from pathlib import Path
from typing import Any

import pytest

from policy_service.pap.bundle import load_bundle
from policy_service.pap.problems import BundleError
from tests.fakes.bundles import PERMIT_ALL, BundleFolder, facts_of, pay_args, pay_manifest

ON_APPROVE = '(principal, action == Action::"approve", resource)'
ON_ALL = "(principal, action, resource)"


@pytest.fixture
def folder(tmp_path: Path) -> BundleFolder:
    return BundleFolder(tmp_path)


GATE = '@id("big") @approval("finance") forbid (principal, action == Action::"pay", resource)'


def test_bundle_has_its_parts(folder: BundleFolder) -> None:
    bundle = folder.policies(f"{PERMIT_ALL}\n{GATE}\nwhen {{ context.input.amount > 5 }};").load()
    assert set(bundle.manifests) == set(bundle.rules.tools) == {"pay"}
    assert list(bundle.policies) == ["all", "big"]
    big = bundle.policies["big"]
    assert (big.file, big.line, big.effect, big.title) == ("rules.cedar", 3, "forbid", "big")
    assert big.text.startswith("@id") and big.text.endswith("amount > 5 };")
    assert (bundle.digest, bundle.commit) == (bundle.rules.digest, f"dir-{bundle.digest[:12]}")
    built_in = bundle.describe("unseen")
    assert built_in is not None and built_in.doc and built_in.gate is not None and built_in.gate.shared
    assert bundle.describe("all") is bundle.policies["all"]
    assert bundle.describe("gone") is None


def test_bundle_without_policies_permits_nothing(folder: BundleFolder) -> None:
    assert folder.load().policies == {}
    assert folder.decide({"account": "a", "amount": 1}).code == "no_permit"


def test_digest_depends_on_bytes_only(folder: BundleFolder) -> None:
    texts = (PERMIT_ALL, PERMIT_ALL, PERMIT_ALL + "// more\n")
    first, again, other = (folder.policies(text).load().digest for text in texts)
    assert first == again != other


def x(condition: str = "", scope: str = "principal, action, resource") -> str:
    """A permit with this scope and condition."""
    return f'@id("x") permit ({scope})' + (f" when {{ {condition} }};" if condition else ";")


# The policies, and a part of the message.
POLICY_PROBLEMS: list[tuple[str, str]] = [
    (x(scope="principal, action"), "rules.cedar:1: this is not Cedar"),
    ('@id("x\udcff") permit (principal, action, resource);', "rules.cedar: byte 6 is not UTF-8"),
    (x(scope="principal == ?principal, action, resource"), "a template"),
    ("\n" + x(scope='principal, action == Action::"refund", resource'), "rules.cedar:2: unrecognized action"),
    (x(scope='principal, action in Action::"writes", resource'), "unrecognized action"),
    (x(scope='principal, action == Action::"pya", resource'), "did you mean 'pay'?"),
    (x(scope="principal is Robot, action, resource"), "unrecognized entity type"),
    (x(scope="principal is Agnt, action, resource"), "did you mean 'Agent'?"),
    (x("context.input.amout > 5"), "did you mean 'amount'?"),
    (x("context.history.spent > 5"), "meters.toml names"),
    (f'@id("x")\npermit {ON_ALL}\n\n@id("y") permit {ON_ALL};', ":1: this policy does not end before line 4"),
    (f"permit {ON_ALL}\nforbid {ON_ALL};", "before line 2; add ';'"),
    (x('context.input.note == ""'), "input.note"),
    (x('context.input.amount == "5"'), "rules.cedar:1"),
    (x('context.input.currency == "USD"'), "currency"),
    (x('resource.state == "open"'), "state"),
    (x('principal.owner == User::"u|1"'), "owner"),
    (x(scope='principal, action in [Action::"approve", Action::"pay"], resource'), "write two"),
    (x(scope='principal, action in [Action::"settle", Action::"approve"], resource'), "write two"),
    ('@id("x") @approval("finance") forbid (principal, action == Action::"settle", resource);', "drop @approval"),
    (f'@id("x") @approval("finance") forbid {ON_APPROVE};', "drop @approval"),
    (x('resource.kind == "unknown"', ON_APPROVE[1:-1]), "kind"),
    (x("context.input.amount > 5", ON_APPROVE[1:-1]), "input"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "message"), POLICY_PROBLEMS)
def test_invalid_policy_is_reported_with_its_line(folder: BundleFolder, text: str, message: str) -> None:
    problems = folder.write("rules.cedar", text.encode("utf-8", "surrogateescape")).problems()
    assert any(message in problem for problem in problems), problems


def pay(**changes: Any) -> tuple[str, dict[str, Any]]:
    """The manifest of `pay` with a mistake."""
    return "tools/pay.json", pay_manifest(**changes)


METER_OF_REFUND = '[meters.calls]\ncount = true\nof = ["refund"]\nper = "principal"\nwindow = "24h"\n'
# The file, what is in it, and a part of the message.
FILE_PROBLEMS: list[tuple[tuple[str, Any], str]] = [
    (("tools/pay.json", "{"), "tools/pay.json:1: this is not JSON"),
    (("tools/pay.json", '{\n"tool" "pay"}'), "tools/pay.json:2: this is not"),
    (("tools/pay.json", '{"tool": "a", "tool": "pay"}'), "appears twice"),
    (pay(approve=True), "approve"),
    (("tools/other.json", pay_manifest()), "name the file after it"),
    *(
        ((f"tools/{name}.json", pay_manifest(tool=name)), "what people do here")
        for name in ("approve", "settle")
    ),
    (pay(groups=["approve"]), "what people do here"),
    (pay(groups=["pay"]), "is a tool and an action group"),
    (pay(resource={"type": "User", "id": "/account"}), "belongs to the service"),
    (pay(resource={"type": "in", "id": "/account"}), "Cedar reserves"),
    (pay(compensation={"tool": "unpay", "map": {}}), "not a tool of this bundle"),
    (pay(compensation={"tool": "pay", "map": {"x": "args:/account"}}), "no argument 'x'"),
    (pay(compensation={"tool": "pay", "map": {"account": "args:/account"}}), "needs the argument 'amount'"),
    (pay(probe="pay"), "a probe only reads and has no manifest"),
    (pay(probe="find_pay", lane="live"), "its adapter knows"),
    (pay(args=pay_args(__entity={"type": "string"})), "reserved"),
    (("groups.toml", "\nx = = 1"), "groups.toml:2: "),
    (("groups.toml", "x = " + "[" * 100_000), "groups.toml: "),
    (("facts.toml", "="), "facts.toml:1: "),
    (("facts/x.json", {}), "no source in facts.toml names this file"),
    (("facts.toml", facts_of("Agent", more='tools=["refund"]\n', x="Long?")), "there is no tool 'refund'"),
    (("facts.toml", facts_of("Agent", x="Long?")), "facts/accounts.json: named by a source, but missing"),
    (("meters.toml", "[meters"), "meters.toml: "),
    (("meters.toml", METER_OF_REFUND), "meters.toml: meter 'calls': of: 'refund' is neither a tool"),
    (("rules.ceder", ""), "unknown kind of file"),
]


@pytest.mark.parametrize(("file", "message"), FILE_PROBLEMS)
def test_invalid_file_is_reported_by_name(folder: BundleFolder, file: tuple[str, Any], message: str) -> None:
    problems = folder.policies("").write(*file).problems()
    assert any(message in problem for problem in problems), problems


def test_fact_file_is_an_object_of_rows(folder: BundleFolder) -> None:
    folder.policies("").write("facts.toml", facts_of("Account", x="Long?"))
    for content in ("[]", '{"a1": "open"}', "{"):
        problems = folder.write("facts/accounts.json", content).problems()
        assert any(problem.startswith("facts/accounts.json:") for problem in problems), content
    assert folder.write("facts/accounts.json", "{}").write("meters.toml", "# none yet\n").problems() == []


def test_all_problems_are_reported_at_once(folder: BundleFolder) -> None:
    folder.policies('@id("a") permit (principal, action);\n\npermit (principal, action, resource);')
    folder.write("tools/bad.json", "{").write("groups.toml", "[groups.g]\nmembers = ['x']\n")
    with pytest.raises(BundleError) as refused:
        load_bundle(folder.path)
    problems = refused.value.problems
    assert {problem.file for problem in problems} == {"rules.cedar", "tools/bad.json", "groups.toml"}
    assert {problem.line for problem in problems if problem.file == "rules.cedar"} == {1, 3}
    assert len(str(refused.value).splitlines()) == len(problems)


ON_SETTLE = ON_APPROVE.replace("approve", "settle")
GATED = '@id("g") @approval("cfo") forbid (principal, action, resource);\n'
AT_NIGHT = 'when { context.env == "night" };'
MAY = f'@id("may") permit {ON_APPROVE};\n'
WARNINGS: list[tuple[str, str]] = [
    (GATED.replace("forbid", '@quorum("2") forbid'), "which has 1; this quorum can never be met"),
    ('@id("p") @unseen("itmes") permit (principal, action, resource);', "'itmes'"),
    ("", "no permit names this tool"),
    (GATED + f'@id("late") forbid {ON_APPROVE} {AT_NIGHT}', 'rules.cedar:2: no permit for Action::"approve"'),
    (f'@id("late") forbid {ON_SETTLE} {AT_NIGHT}', 'rules.cedar:1: no permit for Action::"settle" exists'),
    (GATED.replace("forbid", '@remind("2h") @answer_within("1h") forbid'), "reminds only after the time"),
    (GATED.replace("forbid", '@remind("5s") forbid'), "reminds more often than once a minute"),
    (GATED + MAY + '@id("lock") forbid (principal is User, action == Action::"approve", resource);',
     "rules.cedar:3: no person may approve anything: this forbid always applies"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "message"), WARNINGS)
def test_what_looks_wrong_is_a_warning(folder: BundleFolder, text: str, message: str) -> None:
    assert any(message in str(warning) for warning in folder.policies(text).load().warnings)


def test_unseen_fields_without_reviewers_are_a_warning(folder: BundleFolder) -> None:
    folder.policies(PERMIT_ALL).write("groups.toml", "")
    assert any("no group 'unseen'" in str(warning) for warning in folder.load().warnings)


TOM = ON_APPROVE.replace("principal", 'principal == User::"urn:test|tomas"')
APPROVING_IS_POSSIBLE = {
    "no rule about approving": GATED,
    "a permit and a forbid with a condition": f'{GATED}{MAY}@id("no") forbid {ON_APPROVE} {AT_NIGHT}',
    "a permit and a forbid for one person": GATED + MAY + f'@id("not-tom") forbid {TOM};',
    "rules about approving and no gate": f'@id("lock") forbid {ON_APPROVE};\n',
}


@pytest.mark.parametrize("text", APPROVING_IS_POSSIBLE.values(), ids=APPROVING_IS_POSSIBLE)
def test_no_warning_when_a_permit_for_approving_exists(folder: BundleFolder, text: str) -> None:
    assert [str(w) for w in folder.policies(PERMIT_ALL + text).load().warnings if "approve" in str(w)] == []


def test_valid_bundle_has_no_warnings(folder: BundleFolder) -> None:
    folder.policies(PERMIT_ALL + '@id("u") @unseen("items,note") permit (principal, action, resource);')
    assert folder.load().warnings == ()


def test_number_of_policies_per_decision_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def many(count: int, action: str) -> str:
        rule = '@id("{0}{1}") forbid (principal, action == Action::"{0}", resource);\n'
        return "".join(rule.format(action, n) for n in range(count))

    monkeypatch.setattr("policy_service.pap.check.MAX_POLICIES_PER_TOOL", 20)
    folder = BundleFolder(tmp_path).write("tools/other.json", pay_manifest(tool="other"))
    folder.policies(PERMIT_ALL + many(19, "pay") + many(19, "other"))
    assert folder.problems() == [], "what other tools' calls weigh does not count"
    folder.policies(PERMIT_ALL + many(20, "pay") + many(19, "other"))
    (problem,) = folder.problems()
    assert problem.startswith("tools/pay.json: 21 policies can match this tool, and 20 is the limit")
