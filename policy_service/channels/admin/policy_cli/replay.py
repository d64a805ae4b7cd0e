"""``policy-service calls`` and ``replay FILE``: export recorded calls, and evaluate them with a bundle."""

from __future__ import annotations

import json
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, Any

import typer

from policy_service.channels.admin.output import AsJson, print_result, report_errors
from policy_service.channels.admin.policy_cli.bundles import (
    bad_line_messages,
    load_bundle_files,
    read_recorded_calls,
)
from policy_service.channels.admin.policy_cli.check import BundleName
from policy_service.channels.admin.socket import run_admin_command
from policy_service.pap.bundle import build_bundle
from policy_service.pap.diff.findings import Direction
from policy_service.pap.diff.replay import (
    OutcomeCounts,
    ReplayDifference,
    ReplayedCall,
    count_outcomes,
    outcome_table,
    replay,
    replay_differences,
)
from policy_service.settings import load_settings

Days = Annotated[int, typer.Option("--days", min=1, max=3650, help="How far back.")]
WithSecrets = Annotated[
    bool,
    typer.Option(
        "--with-secrets", help="Keep arguments that the manifest marks as secret; protect the file."
    ),
]


def calls(days: Days = 7, with_secrets: WithSecrets = False) -> None:
    """Print the calls that agents submitted in the last days, one JSON object a line.

    Without --with-secrets secret arguments are replaced, and a replay reports where a policy would have read one.
    """
    with report_errors():
        for call in run_admin_command(
            load_settings(), "recorded-calls", {"days": days, "with_secrets": with_secrets}
        ):
            typer.echo(json.dumps(call, sort_keys=True))


File = Annotated[Path, typer.Argument(metavar="FILE", help="Recorded calls, one JSON object a line.")]
Against = Annotated[
    str | None,
    typer.Option("--against", metavar="BUNDLE", help="Another bundle, to list different decisions."),
]


def replay_calls(
    file: File, bundle: BundleName = None, against: Against = None, as_json: AsJson = False
) -> None:
    """Evaluate recorded calls with a bundle and count the decisions. Exits 1 if a line is not a call."""
    with report_errors(as_json), ExitStack() as opened:
        bundles = []
        for name in (bundle, against) if against is not None else (bundle,):
            bundles.append(build_bundle(load_bundle_files(name)))
            opened.callback(bundles[-1].close)
        calls, bad = read_recorded_calls(file, bundles)
        results = [replay(each, calls) for each in bundles]
        first = results[0]
        differences = replay_differences(first, results[1]) if len(results) > 1 else []
        value = _json(first, differences) | {
            "bad_lines": [{"line": each.number, "why": each.why} for each in bad]
        }
        lines = [*bad_line_messages(bad), *_text(first, count_outcomes(first), differences, against)]
        print_result(value, as_json, "\n".join(lines))
        if bad:
            raise typer.Exit(1)


def _json(replayed: list[ReplayedCall], differences: list[ReplayDifference]) -> dict[str, Any]:
    counts = count_outcomes(replayed)
    return {
        "calls": [each.to_json() for each in replayed],
        "by_tool": _nested(counts.by_tool),
        "by_label": _nested(counts.by_label),
        "differences": [
            {
                "way": each.way.value,
                "words": each.words,
                "before": each.before.to_json(),
                "after": each.after.to_json(),
            }
            for each in differences
        ],
    }


def _nested(counts: Any) -> dict[str, dict[str, int]]:
    found: dict[str, dict[str, int]] = {}
    for (name, outcome), count in sorted(counts.items()):
        found.setdefault(name, {})[outcome] = count
    return found


def _text(
    replayed: list[ReplayedCall],
    counts: OutcomeCounts,
    differences: list[ReplayDifference],
    against: str | None,
) -> list[str]:
    lines = [outcome_table(counts.by_tool, "tool")]
    if counts.by_label:
        lines += ["", outcome_table(counts.by_label, "label")]
    lines += [
        f"line {each.call.number}: not replayable: {each.why_not}"
        for each in replayed
        if each.decision is None
    ]
    if against is not None:
        lines += ["", *_differences(differences, against, sum(each.decision is None for each in replayed))]
    own = sum(each.call.facts is None for each in replayed)
    lines.append(
        f"{len(replayed)} calls; for {own} of them the current facts were read from the bundle's own sources"
    )
    return lines


def _differences(differences: list[ReplayDifference], against: str, unknown: int) -> list[str]:
    if not differences and unknown:
        return [f"{against} decides every replayable call the same; {unknown} cannot be replayed"]
    if not differences:
        return [f"{against} decides every call the same"]
    loose = sum(each.way is Direction.LOOSENING for each in differences)
    lines = [f"{against} decides {len(differences)} calls differently, {loose} of them less strictly:"]
    for each in differences:
        call = each.before.call
        name = f" ({call.name})" if call.name else ""
        lines.append(f"  {each.way.value}: line {call.number}{name} {call.tool}: {each.words}")
    return lines
