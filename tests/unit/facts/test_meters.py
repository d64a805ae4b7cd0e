"""meters.toml: the valid forms, every error, and what policy sees."""

from pathlib import Path
from typing import Any

import pytest

from countersign.contract import MAX_SAFE_INTEGER
from policy_service.facts.meters import MAX_METERS, MAX_TOTAL, Meter
from tests.fakes.bundles import PAY, PAY_ARGS, PERMIT_ALL, BundleFolder, pay_manifest

AMOUNT = {"type": "integer", "minimum": 0}
SPENT = '[meters.spent]\nsum = "/amount"\nof = ["money"]\nper = "principal"\nwindow = "24h"\n'
CALLS = '[meters.calls]\ncount = true\nof = ["pay", "look"]\nper = "resource"\nwindow = "day"\n'
CAP = '@id("cap") forbid (principal, action == Action::"pay", resource)\nwhen { %s };\n'


def manifest(tool: str = "pay", amount: Any = AMOUNT, **more: Any) -> dict[str, Any]:
    properties = {**PAY_ARGS["properties"], "amount": amount}
    return pay_manifest(tool=tool, args={**PAY_ARGS, "properties": properties}, groups=["money"], **more)


@pytest.fixture
def folder(tmp_path: Path) -> BundleFolder:
    folder = BundleFolder(tmp_path).write("tools/pay.json", manifest())
    return folder.write("tools/look.json", pay_manifest(tool="look")).policies(PERMIT_ALL)


def meters(folder: BundleFolder, tool: str) -> dict[str, Meter]:
    return {meter.name: meter for meter in folder.load().meters.get(tool, ())}


def test_a_meter_counts_tools_and_groups_for_somebody_over_a_time(folder: BundleFolder) -> None:
    folder.write("meters.toml", SPENT + CALLS)
    spent, calls = meters(folder, "pay").values()
    found = [(one.name, one.field, one.per, sorted(one.tools)) for one in (spent, calls)]
    assert found == [("spent", "/amount", "principal", ["pay"]), ("calls", "", "resource", ["look", "pay"])]
    assert (spent.words, calls.words) == ("spent (per principal, 24h)", "calls (per resource, day, UTC)")
    assert meters(folder, "look").keys() == {"calls"}


def test_what_a_call_adds(folder: BundleFolder) -> None:
    folder.write("meters.toml", SPENT + CALLS)
    spent, calls = meters(folder, "pay").values()
    args: list[Any] = [{}, *({"amount": amount} for amount in (7, "7", True, -1))]
    assert [spent.amount(one) for one in args] == [0, 7, 0, 0, 0]
    assert calls.amount({}) == 1


def test_people_see_money_where_the_manifests_say_which(folder: BundleFolder) -> None:
    folder.write("meters.toml", SPENT)
    assert meters(folder, "pay")["spent"].currency is None
    money = [{"amount": "/amount", "currency": "const:USD"}]
    assert meters(folder.write("tools/pay.json", manifest(money=money)), "pay")["spent"].currency == "USD"
    folder.write("tools/other.json", manifest("other"))
    assert meters(folder, "pay")["spent"].currency is None


WRONG: dict[str, tuple[str, str]] = {
    "another table": ("[metres.spent]\n", "'metres' is no member of this file; write [meters.NAME]"),
    "no table of tables": ("meters = 1\n", "[meters.NAME]"),
    "a meter that is no table": ("[meters]\nspent = 1\n", "meter 'spent'"),
    "an unknown member": (SPENT + 'max = 5\n', "meter 'spent': max: Extra inputs are not permitted (it is 5)"),
    "neither count nor sum": (SPENT.replace('sum = "/amount"', ""), "either count = true or sum"),
    "both": (SPENT + "count = true\n", "either count = true or sum"),
    "a count of false": (CALLS.replace("true", "false"), "count"),
    "no of": (SPENT.replace('of = ["money"]', ""), "of: Field required"),
    "an empty of": (SPENT.replace('["money"]', "[]"), "of: "),
    "an unknown tool": (SPENT.replace("money", "monney"), "'monney' is neither a tool of this bundle nor"),
    "a group without tools": (SPENT.replace("money", "read"), "known are look, money, pay"),
    "no per": (SPENT.replace('per = "principal"', ""), "per: Field required"),
    "another per": (SPENT.replace("principal", "agent"), "'principal' or 'resource' (it is 'agent')"),
    "a wrong window": (SPENT.replace("24h", "24 hours"), "window: '24 hours' is not a duration"),
    "a wrong zone": (CALLS + 'timezone = "Europe/Atlantis"\n', "timezone: 'Europe/Atlantis' is not known"),
    "a name with capitals": (SPENT.replace("meters.spent", "meters.Spent"), "lower-case letters"),
    "a name that ends in a line": ('[meters."spent\\n"]\n' + SPENT.partition("\n")[2], "lower-case letters"),
    "a name of Cedar's": (SPENT.replace("meters.spent", "meters.has"), "a word of Cedar's own"),
    "a field without a slash": (SPENT.replace("/amount", "amount"), "sum: "),
    "a field that is not declared": (SPENT.replace("/amount", "/sum"), "'/sum' of 'pay' is not declared"),
    "a field below a text": (SPENT.replace("/amount", "/account/x"), "'/account/x' of 'pay' is not declared"),
    "a malformed pointer": (SPENT.replace("/amount", "/a~2"), "no pointer"),
    "a field that is text": (SPENT.replace("/amount", "/account"), "'/account' of 'pay' is not a whole number"),
    "a field that may be negative": (SPENT.replace('["money"]', '["pay", "look"]'), "'/amount' of 'look' may be neg"),
    "too many": ("".join(CALLS.replace("calls", f"c{n}") for n in range(MAX_METERS + 1)), f"at most {MAX_METERS}"),
}  # fmt: skip


@pytest.mark.parametrize(("text", "message"), WRONG.values(), ids=WRONG)
def test_a_wrong_meter_is_refused_by_name(folder: BundleFolder, text: str, message: str) -> None:
    problems = folder.write("meters.toml", text).problems()
    assert any(problem.startswith("meters.toml: ") and message in problem for problem in problems), problems


MAY_BE_SUMMED: dict[str, tuple[Any, bool]] = {
    "from zero": (AMOUNT, True),
    "above zero": ({"type": "integer", "exclusiveMinimum": 0}, True),
    "from minus one": ({"type": "integer", "minimum": -1}, False),
    "a number": ({"type": "number", "minimum": 0}, False),
    "a number or nothing": ({"type": ["integer", "null"], "minimum": 0}, False),
}


@pytest.mark.parametrize(("amount", "may"), MAY_BE_SUMMED.values(), ids=MAY_BE_SUMMED)
def test_only_whole_numbers_from_zero_are_summed(folder: BundleFolder, amount: Any, may: bool) -> None:
    problems = folder.write("tools/pay.json", manifest(amount=amount)).write("meters.toml", SPENT).problems()
    assert (problems == []) is may, problems


def test_every_invalid_meter_is_reported(folder: BundleFolder) -> None:
    text = SPENT.replace("money", "x") + CALLS.replace("resource", "y").replace('"day"', '"z"')
    assert len(folder.write("meters.toml", text).problems()) == 2


# ------------------------------------------------------------------------------------------------ what policy sees


def test_policy_sees_the_meters_of_the_tool_and_one_that_is_not_said_reads_zero(folder: BundleFolder) -> None:
    folder.write("meters.toml", SPENT + CALLS)
    folder.policies(PERMIT_ALL + CAP % "context.history.spent + context.input.amount > 1000")
    outcomes = [
        folder.decide(PAY, history=held).outcome for held in ({"spent": 900}, {"elsewhere": 5_000}, {})
    ]
    assert (outcomes, folder.decide(PAY, history={"spent": 901}).outcome) == (["release"] * 3, "deny")


def test_a_rule_that_reads_the_meter_of_another_tool_does_not_load(folder: BundleFolder) -> None:
    folder.write("meters.toml", SPENT)
    rule = '@id("cap") forbid (principal, action, resource) when { context.history.spent > 5 };'
    problems = folder.policies(PERMIT_ALL + rule).problems()
    assert any("spent" in problem and "rules.cedar" in problem for problem in problems), problems


def test_a_full_meter_and_the_largest_input_stay_inside_the_engines_numbers(folder: BundleFolder) -> None:
    folder.write("meters.toml", SPENT + CALLS)
    rule = "context.history.spent + context.history.calls + context.input.amount > 1000"
    folder.policies(PERMIT_ALL + CAP % rule)
    args, full = PAY | {"amount": MAX_SAFE_INTEGER}, {"spent": MAX_TOTAL, "calls": MAX_TOTAL}
    decision = folder.decide(args, history=full)
    assert (decision.outcome, decision.policies, decision.alarms) == ("deny", ("cap",), ())
