"""A budget is spent by every version of a tool that is in force."""

from __future__ import annotations

from pathlib import Path

from tests.fakes.bundles import PAY_ARGS, PERMIT_ALL, BundleFolder, pay_manifest

METERS = '[meters.paid]\nsum = "/amount"\nof = ["pay"]\nper = "principal"\nwindow = "24h"\n'
RULE = (
    '@id("cap") forbid (principal, action == Action::"pay", resource)\n'
    "when { context.history.paid + context.input.amount > 100 };\n"
)


def args(**changes: object) -> dict[str, object]:
    """The tool's args with properties that differ."""
    properties = {**PAY_ARGS["properties"], "amount": {"type": "integer", "minimum": 0}, **changes}
    return PAY_ARGS | {"properties": properties}


def folder(tmp_path: Path, other: dict[str, object]) -> BundleFolder:
    """A current version that is counted, and another beside it."""
    made = BundleFolder(tmp_path).policies(PERMIT_ALL + RULE).write("meters.toml", METERS)
    made.write("tools/pay.json", pay_manifest(args=args()))
    return made.write("tools/pay@old.json", pay_manifest(title="Pay, before", args=other))


def test_a_version_that_says_what_is_counted_is_weighed_and_counted(tmp_path: Path) -> None:
    made = folder(tmp_path, args())
    bundle = made.load()
    old = next(version for version in bundle.tools if version.label == "old").manifest
    call = {"account": "a1", "amount": 60}
    assert made.decide(call, tool_digest=old.digest).outcome == "release"
    assert made.decide(call, tool_digest=old.digest, history={"paid": 41}).policies == ("cap",)


def test_a_version_without_the_counted_field_would_spend_for_nothing_and_is_refused(tmp_path: Path) -> None:
    made = folder(tmp_path, args(amount={"type": "integer"}))
    assert made.problems() == [
        "tools/pay@old.json: the meter 'paid' counts it: sum: '/amount' of 'pay' may be negative, and would give a "
        'budget back; let its manifest say "minimum": 0 or more'
    ]
