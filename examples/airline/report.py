"""What a replay came to: a table by tool, the calls where policy and label differ, and one JSON line."""

import json
import re
import textwrap
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from examples.airline.replay import Decision, Verdict

DECISIONS: tuple[Decision, ...] = ("released", "reviewed", "denied")
_RULE = re.compile(r'@id\("([^"]+)"\)[^;]*?@doc\("((?:[^"\\]|\\.)*)"\)')


def table(verdicts: Sequence[Verdict]) -> str:
    """Decisions by tool, calls that match gold apart from the others."""
    counts = Counter((v.call.tool, v.call.matches_gold, v.decision) for v in verdicts)
    lines = [
        f"{'':32}{'matches gold':^30}{'other':^30}",
        f"{'tool':32}" + "".join(f"{decision:>10}" for decision in DECISIONS * 2),
    ]
    for tool in sorted({v.call.tool for v in verdicts}):
        cells = [counts[tool, gold, decision] for gold in (True, False) for decision in DECISIONS]
        lines.append(f"{tool:32}" + "".join(f"{cell or '.':>10}" for cell in cells))
    return "\n".join(lines)


def disagreements(verdicts: Iterable[Verdict], rules: Mapping[str, str]) -> str:
    """The calls where policy and label differ: gold that was not released, and released that is not gold."""
    calls: dict[tuple[str, str], list[str]] = {}
    for verdict in verdicts:
        if verdict.call.matches_gold is not (verdict.decision == "released"):
            place = f"{verdict.run} step {verdict.call.step}"
            calls.setdefault((_kind(verdict), _why(verdict, rules)), []).append(place)
    return "\n".join(
        "\n".join([f"  {kind}", *_wrapped(why, 4), *(f"      {place}" for place in places)])
        for (kind, why), places in sorted(calls.items())
    )


def rules_of(policies: str) -> dict[str, str]:
    """What each policy of a Cedar text says of itself: its @doc by its @id."""
    return {policy: doc.replace('\\"', '"') for policy, doc in _RULE.findall(policies)}


def summary(verdicts: Sequence[Verdict]) -> str:
    """The last line: one JSON object."""
    counts = Counter((v.call.matches_gold, v.decision) for v in verdicts)
    sides = {"gold": True, "other": False}
    counted: dict[str, object] = {
        side: {decision: counts[gold, decision] for decision in DECISIONS} for side, gold in sides.items()
    }
    return json.dumps(counted | {"calls": len(verdicts)})


def _kind(verdict: Verdict) -> str:
    side = "matches gold" if verdict.call.matches_gold else "other"
    policies = f" by {', '.join(verdict.policies)}" if verdict.policies else ""
    return f"{verdict.call.tool} ({side}): {verdict.decision}{policies}; then {verdict.became}"


def _why(verdict: Verdict, rules: Mapping[str, str]) -> str:
    if verdict.policies:
        return " ".join(rules.get(policy, "") for policy in verdict.policies)
    return "It breaks no rule of the book; whether the customer wanted it is not for a policy to know."


def _wrapped(text: str, indent: int) -> list[str]:
    return textwrap.wrap(text, 110, initial_indent=" " * indent, subsequent_indent=" " * indent)
