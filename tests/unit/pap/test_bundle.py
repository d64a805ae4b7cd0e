"""Loading a bundle: everything wrong is told at once with its place, and nothing of a wrong bundle is used."""

from pathlib import Path
from typing import Any

import pytest

from policy_service.pap.bundle import load_bundle
from policy_service.pap.problems import BundleError
from tests.fakes.bundles import PAY_ARGS, PERMIT_ALL, BundleFolder, pay_manifest


@pytest.fixture
def folder(tmp_path: Path) -> BundleFolder:
    return BundleFolder(tmp_path)


GATE = '@id("big") @approval("finance") forbid (principal, action == Action::"pay", resource)'


def test_a_bundle_knows_its_parts(folder: BundleFolder) -> None:
    bundle = folder.policies(f"{PERMIT_ALL}\n{GATE}\nwhen {{ context.input.amount > 5 }};").load()
    assert set(bundle.manifests) == set(bundle.rules.tools) == {"pay"}
    assert list(bundle.policies) == ["all", "big"]
    big = bundle.policies["big"]
    assert (big.file, big.line, big.effect, big.title) == ("rules.cedar", 3, "forbid", "big")
    assert big.text.startswith("@id") and big.text.endswith("amount > 5 };")
    assert bundle.digest == bundle.rules.digest
    assert bundle.commit == f"dir-{bundle.digest[:12]}"


def test_the_built_in_gate_can_be_described_too(folder: BundleFolder) -> None:
    bundle = folder.policies(PERMIT_ALL).load()
    built_in = bundle.describe("unseen")
    assert built_in is not None
    assert built_in.gate is not None
    assert built_in.gate.shared
    assert built_in.doc
    assert bundle.describe("all") is bundle.policies["all"]
    assert bundle.describe("gone") is None


def test_a_bundle_without_policies_loads_and_permits_nothing(folder: BundleFolder) -> None:
    assert folder.load().policies == {}
    assert folder.decide({"account": "a", "amount": 1}).code == "no_permit"


def test_equal_bytes_have_one_digest_and_any_change_another(folder: BundleFolder) -> None:
    first = folder.policies(PERMIT_ALL).load().digest
    assert folder.policies(PERMIT_ALL).load().digest == first
    assert folder.policies(PERMIT_ALL + "// more\n").load().digest != first


POLICY_PROBLEMS: dict[str, tuple[str, str]] = {
    "not Cedar": ('@id("x") permit (principal, action);', "rules.cedar:1: this is not Cedar"),
    "not UTF-8": ('@id("x\udcff") permit (principal, action, resource);', "rules.cedar: byte 6 is not UTF-8"),
    "a template": ('@id("x") permit (principal == ?principal, action, resource);', "a template"),
    "an unknown action": (
        '\n@id("x") permit (principal, action == Action::"refund", resource);', "rules.cedar:2: unrecognized action"),
    "an unknown group of actions": (
        '@id("x") permit (principal, action in Action::"writes", resource);', "unrecognized action"),
    "an unknown entity type": (
        '@id("x") permit (principal is Robot, action, resource);', "unrecognized entity type"),
    "an unknown argument": (
        '@id("x") permit (principal, action, resource) when { context.input.amout > 5 };',
        "did you mean 'amount'?"),
    "an unknown meter": (
        '@id("x") permit (principal, action, resource) when { context.history.spent > 5 };', "meters.toml names"),
    "a misspelt action": (
        '@id("x") permit (principal, action == Action::"pya", resource);', "did you mean 'pay'?"),
    "a misspelt entity type": (
        '@id("x") permit (principal is Agnt, action, resource);', "did you mean 'Agent'?"),
    "a policy that does not end": (
        '@id("x")\npermit (principal, action, resource)\n\n@id("y") permit (principal, action, resource);',
        "rules.cedar:1: this policy does not end before line 4; add ';'"),
    "a policy that does not end before one without a name": (
        'permit (principal, action, resource)\nforbid (principal, action, resource);', "before line 2; add ';'"),
    "an unseen argument": (
        '@id("x") permit (principal, action, resource) when { context.input.note == "" };', "input.note"),
    "an argument of another type": (
        '@id("x") permit (principal, action, resource) when { context.input.amount == "5" };', "rules.cedar:1"),
    "an optional argument without has": (
        '@id("x") permit (principal, action, resource) when { context.input.currency == "USD" };', "currency"),
    "an attribute nobody declared": (
        '@id("x") permit (principal, action, resource) when { resource.state == "open" };', "state"),
    "an owner without has": (
        '@id("x") permit (principal, action, resource) when { principal.owner == User::"u|1" };', "owner"),
    "a rule about approving and a tool at once": (
        '@id("x") permit (principal, action in [Action::"approve", Action::"pay"], resource);', "write two"),
    "a rule about settling and approving": (
        '@id("x") permit (principal, action in [Action::"settle", Action::"approve"], resource);', "write two"),
    "people asked to approve settling": (
        '@id("x") @approval("finance") forbid (principal, action == Action::"settle", resource);', "drop @approval"),
    "a rule about settling that looks at what only a review has": (
        '@id("x") permit (principal, action == Action::"approve", resource) when { resource.kind == "unknown" };',
        "kind"),
    "people asked to approve approving": (
        '@id("x") @approval("finance") forbid (principal, action == Action::"approve", resource);', "drop @approval"),
    "an approving rule that reads args": (
        '@id("x") permit (principal, action == Action::"approve", resource) when { context.input.amount > 5 };',
        "input"),
}  # fmt: skip


@pytest.mark.parametrize(("text", "message"), POLICY_PROBLEMS.values(), ids=POLICY_PROBLEMS)
def test_a_wrong_policy_is_told_with_its_place(folder: BundleFolder, text: str, message: str) -> None:
    folder.write("rules.cedar", text.encode("utf-8", "surrogateescape"))
    problems = folder.problems()
    assert any(message in problem for problem in problems), problems


FILE_PROBLEMS: dict[str, tuple[str, Any, str]] = {
    "a manifest that is no JSON": ("tools/pay.json", "{", "tools/pay.json:1: this is not JSON"),
    "a manifest with a key twice": ("tools/pay.json", '{"tool": "a", "tool": "pay"}', "appears twice"),
    "a manifest with an unknown member": ("tools/pay.json", pay_manifest(approve=True), "approve"),
    "a manifest under another name": ("tools/other.json", pay_manifest(), "name the file after it"),
    "a tool called approve": ("tools/approve.json", pay_manifest(tool="approve"), "what people do here"),
    "a tool called settle": ("tools/settle.json", pay_manifest(tool="settle"), "what people do here"),
    "a group called approve": ("tools/pay.json", pay_manifest(groups=["approve"]), "what people do here"),
    "a tool called like a group": ("tools/pay.json", pay_manifest(groups=["pay"]), "is a tool and an action group"),
    "a resource type of ours": (
        "tools/pay.json", pay_manifest(resource={"type": "User", "id": "/account"}), "belongs to the service"),
    "a resource type that is a keyword": (
        "tools/pay.json", pay_manifest(resource={"type": "in", "id": "/account"}), "Cedar reserves"),
    "a compensation that is not here": (
        "tools/pay.json", pay_manifest(compensation={"tool": "unpay", "map": {}}), "not a tool of this bundle"),
    "a probe that would act": ("tools/pay.json", pay_manifest(probe="pay"), "a probe only asks and has no manifest"),
    "a probe of a live tool": (
        "tools/pay.json", pay_manifest(probe="find_pay", lane="live"), "its adapter, which knows"),
    "a compensation given an unknown argument": (
        "tools/pay.json", pay_manifest(compensation={"tool": "pay", "map": {"x": "args:/account"}}), "no argument 'x'"),
    "a compensation without a required argument": (
        "tools/pay.json", pay_manifest(compensation={"tool": "pay", "map": {"account": "args:/account"}}),
        "needs the argument 'amount'"),
    "args that are reserved": (
        "tools/pay.json",
        pay_manifest(args={**PAY_ARGS, "properties": {**PAY_ARGS["properties"], "__entity": {"type": "string"}}}),
        "reserved"),
    "groups that are no TOML": ("groups.toml", "\nx = = 1", "groups.toml:2: "),
    "a manifest that is no JSON on a line": ("tools/pay.json", '{\n"tool" "pay"}', "tools/pay.json:2: this is not"),
    "groups nested beyond any parser": ("groups.toml", "x = " + "[" * 100_000, "groups.toml: "),
    "facts that are no TOML": ("facts.toml", "=", "facts.toml:1: "),
    "a fact file nobody names": ("facts/x.json", {}, "no source in facts.toml names this file"),
    "a source for a tool that is not here": (
        "facts.toml",
        '[entities.Agent.attributes]\nx="Long?"\n[[source]]\nname="s"\nkind="file"\nfile="facts/s.json"\n'
        'entity="Agent"\ntools=["refund"]\n',
        "there is no tool 'refund'"),
    "a source whose file is missing": (
        "facts.toml",
        '[entities.Agent.attributes]\nx="Long"\n[[source]]\nname="s"\nkind="file"\nfile="facts/s.json"\nentity="Agent"\n',
        "facts/s.json: named by a source, but missing"),
    "meters that are no TOML": ("meters.toml", "[meters", "meters.toml: "),
    "a meter of a tool that is not here": (
        "meters.toml",
        '[meters.calls]\ncount = true\nof = ["refund"]\nper = "principal"\nwindow = "24h"\n',
        "meters.toml: meter 'calls': of: 'refund' is neither a tool"),
    "a file of an unknown kind": ("rules.ceder", "", "unknown kind of file"),
}  # fmt: skip


@pytest.mark.parametrize(("name", "content", "message"), FILE_PROBLEMS.values(), ids=FILE_PROBLEMS)
def test_a_wrong_file_is_told_by_name(folder: BundleFolder, name: str, content: Any, message: str) -> None:
    problems = folder.policies("").write(name, content).problems()
    assert any(message in problem for problem in problems), problems


FACT_FILES = {"a list": "[]", "a row that is no object": '{"a1": "open"}', "no JSON": "{"}


@pytest.mark.parametrize("content", FACT_FILES.values(), ids=FACT_FILES)
def test_a_fact_file_is_one_object_of_rows(folder: BundleFolder, content: str) -> None:
    folder.write("facts.toml", '[entities.Account.attributes]\nx="Long"\n[[source]]\nname="s"\nkind="file"\n'
                 'file="facts/s.json"\nentity="Account"\n')  # fmt: skip
    assert any(
        problem.startswith("facts/s.json:") for problem in folder.write("facts/s.json", content).problems()
    )


def test_empty_meters_are_no_meters(folder: BundleFolder) -> None:
    assert folder.policies("").write("meters.toml", "# none yet\n").problems() == []


def test_every_problem_is_told_at_once(folder: BundleFolder) -> None:
    folder.policies('@id("a") permit (principal, action);\n\npermit (principal, action, resource);')
    folder.write("tools/bad.json", "{").write("groups.toml", "[groups.g]\nmembers = ['x']\n")
    with pytest.raises(BundleError) as refused:
        load_bundle(folder.path)
    assert {problem.file for problem in refused.value.problems} == {
        "rules.cedar",
        "tools/bad.json",
        "groups.toml",
    }
    assert {problem.line for problem in refused.value.problems if problem.file == "rules.cedar"} == {1, 3}
    assert len(str(refused.value).splitlines()) == len(refused.value.problems)


GATED = '@id("g") @approval("cfo") forbid (principal, action, resource);\n'
WARNINGS: dict[str, tuple[str, str]] = {
    "a gate nobody can meet": ('@id("g") @approval("cfo") @quorum("2") forbid (principal, action, resource);',
                               "which has 1; nobody can ever meet it"),
    "unseen fields that no tool has": ('@id("p") @unseen("itmes") permit (principal, action, resource);', "'itmes'"),
    "a tool that nothing permits": ("", "no permit names this tool"),
    "rules about approving that permit nobody": (
        GATED + '@id("not-at-night") forbid (principal, action == Action::"approve", resource) '
                'when { context.env == "night" };',
        'rules.cedar:2: there is no permit for Action::"approve" beside it'),
    "only forbids about settling": (
        '@id("not-at-night") forbid (principal, action == Action::"settle", resource) '
        'when { context.env == "night" };',
        'rules.cedar:1: there is no permit for Action::"settle" beside it'),
    "a reminder that never comes": (
        '@id("g") @approval("cfo") @remind("2h") @answer_within("1h") forbid (principal, action, resource);',
        "reminds after the time to answer is over"),
    "a reminder every second": (
        '@id("g") @approval("cfo") @remind("5s") forbid (principal, action, resource);',
        "reminds more often than once a minute"),
    "a forbid to approve for everybody": (
        GATED + '@id("may") permit (principal, action == Action::"approve", resource);\n'
                '@id("lock") forbid (principal is User, action == Action::"approve", resource);',
        "rules.cedar:3: nobody may approve anything: this holds for everybody"),
}  # fmt: skip


@pytest.mark.parametrize(("text", "message"), WARNINGS.values(), ids=WARNINGS)
def test_what_looks_wrong_is_a_warning(folder: BundleFolder, text: str, message: str) -> None:
    assert any(message in str(warning) for warning in folder.policies(text).load().warnings)


def test_unseen_fields_without_anybody_to_look_at_them_are_a_warning(folder: BundleFolder) -> None:
    folder.policies(PERMIT_ALL).write("groups.toml", "")
    assert any("no group 'unseen'" in str(warning) for warning in folder.load().warnings)


APPROVING_IS_POSSIBLE = {
    "no rule about approving": GATED,
    "a permit and a forbid with a condition": GATED
    + '@id("may") permit (principal, action == Action::"approve", resource);\n'
    '@id("no-dev") forbid (principal, action == Action::"approve", resource) when { context.env == "dev" };',
    "a permit and a forbid for one person": GATED
    + '@id("may") permit (principal, action == Action::"approve", resource);\n'
    '@id("not-tom") forbid (principal == User::"urn:test|tomas", action == Action::"approve", resource);',
    "rules about approving and no gate": (
        '@id("lock") forbid (principal, action == Action::"approve", resource);\n'
    ),
}


@pytest.mark.parametrize("text", APPROVING_IS_POSSIBLE.values(), ids=APPROVING_IS_POSSIBLE)
def test_where_somebody_may_approve_nothing_is_said_about_it(folder: BundleFolder, text: str) -> None:
    assert [str(w) for w in folder.policies(PERMIT_ALL + text).load().warnings if "approve" in str(w)] == []


def test_a_sound_bundle_has_no_warnings(folder: BundleFolder) -> None:
    assert folder.policies(PERMIT_ALL + '@id("u") @unseen("items,note") permit (principal, action, resource);').load(
    ).warnings == ()  # fmt: skip


def _many(count: int, action: str) -> str:
    return "".join(
        f'@id("{action}{n}") forbid (principal, action == Action::"{action}", resource);\n'
        for n in range(count)
    )


@pytest.mark.timeout(120)
def test_what_one_decision_weighs_is_bounded_when_the_bundle_is_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("policy_service.pap.checking.MAX_OF_ONE_TOOL", 20)
    folder = BundleFolder(tmp_path).write("tools/other.json", pay_manifest(tool="other"))
    folder.policies(PERMIT_ALL + _many(19, "pay") + _many(19, "other"))
    assert folder.problems() == [], "what other tools' calls weigh does not count"
    folder.policies(PERMIT_ALL + _many(20, "pay") + _many(19, "other"))
    (problem,) = folder.problems()
    assert problem.startswith("tools/pay.json: 21 policies can match this tool, and 20 is the limit")
