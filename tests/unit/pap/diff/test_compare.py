"""Each kind of change to a bundle is reported with its direction."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from countersign.contract import ToolManifest
from policy_service.pap.bundle import Bundle, load_bundle
from policy_service.pap.diff.compare import DiffReport, compare
from policy_service.pap.diff.findings import Direction
from policy_service.pap.diff.manifest_changes import manifest_changes, pair_versions, version_changes
from tests.fakes.bundles import GROUPS, PERMIT_ALL, SPENT, BundleFolder, facts_of, pay_args, pay_manifest

Change = Callable[[BundleFolder], BundleFolder]
RULES = """
@id("all") permit (principal in Role::"desk", action == Action::"pay", resource);
@id("large") @title("Large") @approval("finance") @quorum("2") @step_up("passkey") @reason
@answer_within("1h") @valid_for("30m")
forbid (principal, action in Action::"money", resource) when { context.input.amount > 50 };
@id("second") @approval("finance|cfo")
forbid (principal, action, resource) when { context.input.amount > 500 };
@id("closed") forbid (principal, action, resource) when { resource.state == "closed" };
@id("who") permit (principal in Group::"finance", action == Action::"approve", resource);
"""
FACTS = facts_of("Account", more='as_of = "at"\nmax_age = "1h"\n', state="String", tier="Long?")
AT = "2026-11-21T22:00:00Z"
ROWS = {"a1": {"state": "open", "at": AT}, "a2": {"state": "closed", "at": AT}}
STRICT = {"aud": "vault", "recheck": True, "risk": "high", "recipients": ["/account"]}
MANIFEST = pay_manifest(groups=["money"], secret=["/note"], **STRICT)
LAXER = "x }, expect: review, needs: {finance: 1}"
SURVIVES = '[[survives]]\npolicy = "all"\nmutant = "x"\nwhy = "so"\n'
CASES = """
agents: { robot: { name: robot } }
defaults: { now: 2026-11-21T22:00:00Z, agent: robot, tool: pay }
cases:
  - { it: a truth is no amount, args: { account: a1, amount: true }, expect: deny, reasons: [invalid_args] }
  - { it: a text is no amount, args: { account: a1, amount: x }, expect: deny, reasons: [invalid_args] }
"""


def folder(path: Path) -> BundleFolder:
    """The bundle before any change."""
    made = BundleFolder(path).policies(RULES).write("facts.toml", FACTS).write("facts/accounts.json", ROWS)
    return made.write("tools/pay.json", MANIFEST).write("cases/pay.yaml", CASES)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    """The bundle before any change, loaded once."""
    return folder(tmp_path_factory.mktemp("before")).load()


def manifest(**changes: object) -> Change:
    return lambda made: made.write("tools/pay.json", MANIFEST | changes)


def rules(*replaced: str) -> Change:
    """A change to the rules: replace each text by the one after it."""
    text = RULES
    for old, new in zip(replaced[::2], replaced[1::2], strict=True):
        assert old in text
        text = text.replace(old, new)
    return lambda made: made.policies(text)


def text(name: str, whole: str, *replaced: str) -> Change:
    """A change to another file: replace each text by the one after it."""
    for old, new in zip(replaced[::2], replaced[1::2], strict=True):
        assert old in whole
        whole = whole.replace(old, new)
    return lambda made: made.write(name, whole)


WHO = '@id("who") permit (principal in Group::"finance", action == Action::"approve", resource);'
NIGHT = '[groups.night]\nmembers = ["maya"]\n'
UNIQUE = {"type": "array", "uniqueItems": True, "items": {"type": "string"}}


def without(made: BundleFolder, name: str) -> BundleFolder:
    """The folder without one of its files."""
    (made.path / name).unlink()
    return made


def laxer_version(label: str) -> Change:
    """An additional manifest version that accepts more."""
    free = pay_args(amount={"type": "integer", "maximum": 10**9})
    return lambda made: made.write(f"tools/pay@{label}.json", MANIFEST | {"args": free})


def regrouped(made: BundleFolder) -> BundleFolder:
    """The tool leaves its action group, which another tool is in."""
    return manifest(groups=[])(made).write("tools/other.json", MANIFEST | {"tool": "other"})


A9 = 'resource == Account::"a9"'
LOOSENINGS = {
    "a version more": (laxer_version("next"), "tool-version"),
    "a gate asks later": (rules("> 50 }", "> 60 }"), "review-to-release"),
    "a gate is gone": (rules('@id("second") @approval("finance|cfo")', '@id("second") @approval("unseen")'), "groups"),
    "a group added to another": (rules('@approval("finance") @quorum', '@approval("finance|cfo") @quorum'), "groups"),
    "a gate that asks less of everything": (
        rules('@quorum("2")', '@quorum("1") @shared @escalate("cfo")', '@step_up("passkey") ', "", "@reason\n", "\n",
              '@answer_within("1h")', '@answer_within("3h")', '@valid_for("30m")', '@valid_for("2h")'),
        "quorum shared escalate step_up reason answer_within valid_for"),
    "default quorum and time": (rules('@quorum("2") ', "", '@answer_within("1h") ', ""), "quorum answer_within"),
    "a forbid is a gate": (rules('@id("closed")', '@id("closed") @approval("cfo")'), "deny-to-review"),
    "a forbid is narrowed": (rules('resource.state == "closed"', 'resource.state == "shut"'), "deny-to-release"),
    "a forbid for one resource": (rules("resource) when { resource.s", f"{A9}) when {{ resource.s"), "deny-to-release"),
    "a wider principal": (rules('principal in Role::"desk"', "principal"), "deny-to-release"),
    "a wider unseen": (rules('@id("all")', '@id("all") @unseen("items,note")'), "review-to-release"),
    "another action group": (regrouped, "review-to-release"),
    "anybody approves": (rules('principal in Group::"finance"', "principal"), "who-may-approve"),
    "no rule about approving": (rules(WHO, ""), "who-may-approve"),
    "a person more": (text("groups.toml", GROUPS, 'members = ["tomas"]', 'members = ["tomas", "maya"]'), "group"),
    "another person's id": (text("groups.toml", GROUPS, "urn:test|tomas", "urn:test|mallory"), "group"),
    "a new group of people": (text("groups.toml", GROUPS, "[groups.cfo]", NIGHT + "[groups.cfo]"), "group"),
    "names for others": (
        text("groups.toml", GROUPS, 'name = "Maya"', 'name = "TOMAS "',
             "[groups.finance]", '[groups.finance]\ntitle = "CFO"'), "person-name group-title"),
    "a group of the directory's": (
        text("groups.toml", GROUPS, "[people.maya]", '[directory.groups]\nlegal = "Everybody"\n[people.maya]'),
        "directory-group"),
    "an open account": (text("facts/accounts.json", json.dumps(ROWS), "closed", "open"), "fact-row"),
    "a new account": (lambda made: made.write("facts/accounts.json", ROWS | {"a3": ROWS["a1"]}), "fact-row"),
    "older facts of another type": (
        text("facts.toml", FACTS, 'max_age = "1h"', 'max_age = "9h"', 'tier = "Long?"', 'tier = "Bool?"'),
        "fact-source-max_age fact-attribute"),
    "facts of any age": (text("facts.toml", FACTS, 'max_age = "1h"', ""), "fact-source-max_age"),
    "another file of facts": (
        lambda made: without(made, "facts/accounts.json").write("facts/b.json", ROWS)
        .write("facts.toml", FACTS.replace("accounts.json", "b.json")), "fact-source-file"),
    "a manifest that is laxer": (
        manifest(idempotent=True, aud=None, recheck=False, on_exhausted="tool", risk="low", secret=[], recipients=[],
                 sentence="Look at {account}", resource={"type": "Account", "id": "/currency"},
                 timeout_seconds=600, money=[{"amount": "/amount", "currency": "const:JPY"}]),
        "manifest-idempotent manifest-aud manifest-recheck manifest-on_exhausted manifest-risk manifest-secret "
        "manifest-recipients manifest-sentence manifest-resource manifest-timeout_seconds "
        "manifest-money"),
    "hidden in another lane": (manifest(secret=["/note", "/account"], lane="live"), "manifest-secret manifest-lane"),
    "a new arg": (manifest(args=pay_args(extra={"type": "string"})), "manifest-args"),
    "a wider enum": (manifest(args=pay_args(currency={"enum": ["USD", "EUR", "GBP"]})), "manifest-args"),
    "an array policy may see": (manifest(args=pay_args(items=UNIQUE)), "manifest-args"),
    "a case is gone": (lambda made: without(made, "cases/pay.yaml"), "case"),
    "a case asks less": (text("cases/pay.yaml", CASES, "x }, expect: deny, reasons: [invalid_args]", LAXER), "case"),
    "a case about another agent": (text("cases/pay.yaml", CASES, "name: robot", "name: r2"), "case"),
    "an acknowledged mutant": (lambda made: made.write("cases/mutants.toml", SURVIVES), "mutants"),
}  # fmt: skip


def changed(tmp_path: Path, change: Change) -> Bundle:
    return change(folder(tmp_path / "after")).load()


def report_of(tmp_path: Path, change: Change, before: Change) -> DiffReport:
    """The diff between two changes of the bundle."""
    return compare(before(folder(tmp_path / "before")).load(), changed(tmp_path, change))


def kinds(report: DiffReport, way: Direction = Direction.LOOSENING) -> set[str]:
    """The kinds of the findings in one direction."""
    return {finding.kind for finding in report.in_direction(way)}


@pytest.mark.parametrize(("change", "expected"), LOOSENINGS.values(), ids=LOOSENINGS)
def test_loosening_is_reported(whole: Bundle, tmp_path: Path, change: Change, expected: str) -> None:
    assert set(expected.split()) <= kinds(compare(whole, changed(tmp_path, change)))


TIGHTENINGS = {
    "a gate asks earlier": rules("> 50 }", "> 40 }"),
    "more people": rules('@quorum("2")', '@quorum("3")'),
    "a shorter time": rules('@valid_for("30m")', '@valid_for("5m")'),
    "a new forbid": rules('@id("closed")', '@id("never") forbid (principal, action, resource);\n@id("closed")'),
    "a person fewer": text("groups.toml", GROUPS, 'members = ["maya", "tomas"]', 'members = ["tomas"]'),
    "a shorter timeout": manifest(timeout_seconds=5),
    "a narrower enum": manifest(args=pay_args(currency={"type": "string", "enum": ["USD"]})),
    "fresher facts": text("facts.toml", FACTS, 'max_age = "1h"', 'max_age = "5m"'),
    "a row fewer, and a call about it is denied": text("facts/accounts.json", json.dumps({"a1": ROWS["a1"]})),
}  # fmt: skip


@pytest.mark.parametrize("change", TIGHTENINGS.values(), ids=TIGHTENINGS)
def test_tightening_needs_no_acknowledgement(whole: Bundle, tmp_path: Path, change: Change) -> None:
    report = compare(whole, changed(tmp_path, change))
    assert report.not_acknowledged(()) == []
    assert report.in_direction(Direction.TIGHTENING)


STRICTER = [({}, {"on_exhausted": "tool"}), ({"lane": "live", "ask": "live"}, {"lane": "live", "ask": None})]


@pytest.mark.parametrize(("strict", "lenient"), STRICTER)
def test_stricter_member_tightens_and_its_removal_loosens(strict: Any, lenient: Any) -> None:
    one, other = (ToolManifest.model_validate(pay_manifest(**each)) for each in (strict, lenient))
    (tighter,) = manifest_changes(other, one, "pay", frozenset(), is_settled=True)
    (looser,) = manifest_changes(one, other, "pay", frozenset(), is_settled=True)
    assert (tighter.way, looser.way) == (Direction.TIGHTENING, Direction.LOOSENING)


LOOSER, TIGHTER = Direction.LOOSENING, Direction.TIGHTENING
ASKED = [("live", False, LOOSER), (None, False, TIGHTER), ("live", True, TIGHTER)]


@pytest.mark.parametrize(("ask", "labelled", "way"), ASKED)
def test_tool_versions_are_compared(tmp_path: Path, ask: str | None, labelled: bool, way: Direction) -> None:
    """A live tool without any manifest runs without a decision; one with another version does not."""
    made = BundleFolder(tmp_path).policies(PERMIT_ALL)
    gone, name = pay_manifest(tool="note", lane="live", ask=ask), "note@old" if labelled else "note"
    if labelled:
        made.write("tools/note.json", gone | {"risk": "high"})
    before = made.write(f"tools/{name}.json", gone).load()
    after = load_bundle(without(made, f"tools/{name}.json").path)
    (found,) = version_changes(pair_versions(before, after), frozenset())
    assert (found.way, found.kind, found.subject) == (way, "tool", name)


FORM: dict[str, Change] = {
    "a remark among the rules": rules("\n@id", "\n// a remark\n   @id"),
    "lines between the rules": rules(";\n", ";\n\n"),
    "the order of members": text("groups.toml", GROUPS, '["maya", "tomas"]', '["tomas", "maya"]'),
    "a manifest laid out": text("tools/pay.json", json.dumps(MANIFEST, indent=4, sort_keys=True)),
    "a remark among the cases": text("cases/pay.yaml", CASES, "\ncases:", "\n# a remark\ncases:"),
    "a space in facts": text("facts/accounts.json", json.dumps(ROWS), "{", "{ "),
    "a remark among the sources": text("facts.toml", FACTS, "[[source]]", "# a remark\n[[source]]"),
}


@pytest.mark.parametrize("change", FORM.values(), ids=FORM)
def test_change_of_form_alone_is_equivalent(whole: Bundle, tmp_path: Path, change: Change) -> None:
    assert compare(whole, changed(tmp_path, change)).findings == ()


OPEN_WORLD = FACTS.replace('as_of = "at"\nmax_age = "1h"', "optional = true").replace('"String"', '"String?"')
FROZEN = facts_of("Agent", "facts/ag.json", "optional = true\n", frozen="Bool?")
METER = SPENT.replace("pay", "money")
AMOUNT = pay_args(amount={"type": "integer", "minimum": 0})
HELD_BACK = '[groups.suspended]\nmembers = ["maya"]\n'
NOT_SUSPENDED = '@id("no") forbid (principal in Group::"suspended", action == Action::"approve", resource);\n'
OWNED = 'principal has owner && principal.owner in Group::"suspended"'
OF_SUSPENDED = f'@id("no") forbid (principal, action, resource)\nwhen {{ {OWNED} }};\n'


@pytest.mark.parametrize(("file", "source"), [("facts/accounts.json", OPEN_WORLD), ("facts/ag.json", FROZEN)])
def test_removed_row_of_an_optional_source_loosens(tmp_path: Path, file: str, source: str) -> None:
    rows = {"a1": {"state": "closed"}} if source is OPEN_WORLD else {"robot": {"frozen": True}}
    made = [BundleFolder(tmp_path / str(len(held))).write("facts.toml", source).write(file, held).policies(WHO)
            for held in (rows, {})]  # fmt: skip
    assert kinds(compare(made[0].load(), made[1].load())) == {"fact-row"}


def metered(text: str, groups: list[str]) -> Change:
    """Meters and a second tool with these action groups."""
    send = pay_manifest(tool="send", args=AMOUNT, groups=["money"]) | {"groups": groups}
    return lambda made: manifest(args=AMOUNT)(made).write("meters.toml", text).write("tools/send.json", send)


def test_leaving_a_meter_by_action_group_loosens(tmp_path: Path) -> None:
    report = report_of(tmp_path, metered(METER, []), metered(METER, ["money"]))
    assert ("meter", "spent") in {(f.kind, f.subject) for f in report.in_direction(Direction.LOOSENING)}


METERS = [("", METER, TIGHTER), (METER, (METER + 'doc = "What was paid"\n'), Direction.LOOK)]


@pytest.mark.parametrize(("before", "after", "way"), METERS)
def test_new_meter_tightens(tmp_path: Path, before: str, after: str, way: Direction) -> None:
    report = report_of(tmp_path, metered(after, ["money"]), metered(before, ["money"]))
    assert [(f.kind, f.way) for f in report.findings] == [("meter", way)]


@pytest.mark.parametrize("rule", [NOT_SUSPENDED, OF_SUSPENDED, OF_SUSPENDED.replace("when", "unless")])
def test_leaving_a_restricted_group_loosens(tmp_path: Path, rule: str) -> None:
    def with_group(held: str) -> Change:
        return lambda made: made.policies(RULES + rule).write("groups.toml", GROUPS + held)

    report = report_of(tmp_path, with_group(HELD_BACK.replace('"maya"', "")), with_group(HELD_BACK))
    assert ("group-left" in kinds(report)) is ("unless" not in rule)


def test_renamed_person_is_to_be_reviewed(whole: Bundle, tmp_path: Path) -> None:
    report = compare(whole, changed(tmp_path, text("groups.toml", GROUPS, 'name = "Maya"', 'name = "Maja"')))
    assert [(f.kind, f.way) for f in report.findings] == [("person-name", Direction.LOOK)]


def test_each_version_is_compared_with_an_old_one(tmp_path: Path) -> None:
    wider = text("tools/pay@next.json", json.dumps(MANIFEST | {"risk": "low"}))
    report = report_of(tmp_path, wider, laxer_version("next"))
    assert ("manifest-risk", "pay@next") in {(f.kind, f.subject) for f in report.in_direction(LOOSER)}
    assert [one.tool for one in report.tools] == ["pay", "pay@next"]


def test_rule_for_a_non_current_version_is_explored_on_it(tmp_path: Path) -> None:
    bounded = manifest(args=pay_args(amount={"type": "integer", "maximum": 9}))

    def limited(limit: int) -> Change:
        rule = f'@id("big") forbid (principal, action, resource) when {{ context.input.amount > {limit} }};\n'
        return lambda made: bounded(laxer_version("next")(made)).policies(RULES + rule)

    report = report_of(tmp_path, limited(6000), limited(5000))
    assert {finding.subject for finding in report.in_direction(Direction.LOOSENING)} == {"pay@next"}


def test_version_that_becomes_current_loosens_nothing(tmp_path: Path) -> None:
    old = laxer_version("next")(folder(tmp_path / "before"))
    raw = (old.path / "tools/pay@next.json").read_text()
    report = compare(old.load(), changed(tmp_path, text("tools/pay.json", raw)))
    assert report.not_acknowledged(()) == []
    assert ("tool", "pay") in {(f.kind, f.subject) for f in report.in_direction(Direction.TIGHTENING)}


def test_acknowledgement_covers_exactly_one_change(whole: Bundle, tmp_path: Path) -> None:
    first = compare(whole, changed(tmp_path / "1", rules("> 50 }", "> 60 }")))
    other = compare(whole, changed(tmp_path / "2", rules("> 50 }", "> 70 }")))
    ids = [finding.id for finding in first.in_direction(Direction.LOOSENING)]
    assert first.not_acknowledged(ids) == []
    assert other.not_acknowledged(ids) != []
    found = next(one for one in first.in_direction(Direction.LOOSENING) if one.kind == "review-to-release")
    assert (found.example["args"]["amount"], found.policies) == (51, ("large",))
    assert any(line.startswith("after: rules.cedar:") for line in found.lines)
    assert first.tools[0].how == "exhaustive"


SAMPLED = [
    ("context.input.amount + context.txn.size > 500", "context.input.amount + context.txn.size > 600"),
    ('context.input.account like "a*"', 'context.input.account like "ab*"'),
    ("context.input.account == resource.state", "context.input.account != resource.state"),
]


@pytest.mark.parametrize(("before", "after"), SAMPLED)
def test_inexact_rule_is_sampled_and_found(tmp_path: Path, before: str, after: str) -> None:
    def with_rule(condition: str) -> Change:
        rule = f'@id("extra") forbid (principal, action, resource) when {{ {condition} }};'
        return lambda made: made.policies(RULES + rule)

    report = report_of(tmp_path, with_rule(after), with_rule(before))
    assert report.tools[0].how == "sampled"
    assert any("extra" in finding.policies for finding in report.in_direction(LOOSER))


def test_many_rules_about_one_tool_are_bounded(tmp_path: Path) -> None:
    many = RULES + "".join(
        f'@id("p{n}") forbid (principal, action, resource) '
        f'when {{ context.input.amount == {n} && resource.state == "s{n}" }};\n'
        for n in range(200)
    )
    fewer = many.replace("== 7 &&", "== 7777 &&")
    report = report_of(tmp_path, lambda made: made.policies(fewer), lambda made: made.policies(many))
    found = {finding.kind: finding.policies for finding in report.in_direction(Direction.LOOSENING)}
    assert found["deny-to-release"] == ("p7",)
    assert report.tools[0].how == "sampled"
    assert report.tools[0].count < 5_000


PRINT_ID = (
    "from policy_service.domain.gates import Gate\n"
    "from policy_service.pap.diff.findings import Finding, Direction\n"
    "gate = Gate('large', frozenset({'finance', 'cfo', 'legal', 'board'}))\n"
    "print(Finding(Direction.LOOSENING, 'kind', 'tool', 'words', content=[('forbid', gate, None)]).id)\n"
)


def test_finding_id_is_stable_across_processes() -> None:
    command, env = [sys.executable, "-c", PRINT_ID], dict(os.environ)
    ids = {subprocess.check_output(command, env=env | {"PYTHONHASHSEED": seed}) for seed in "123"}
    assert len(ids) == 1
