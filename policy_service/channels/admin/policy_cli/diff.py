"""``policy-service diff OLD NEW``: what a change newly permits, to check before it is merged."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from policy_service.channels.admin.output import AsJson, print_result, problem_json, report_errors
from policy_service.channels.admin.policy_cli.bundles import (
    bad_line_messages,
    load_bundle_files,
    read_recorded_calls,
)
from policy_service.pap.bundle import Bundle, build_bundle
from policy_service.pap.diff.compare import DiffReport, compare
from policy_service.pap.diff.findings import Direction, Finding
from policy_service.pap.diff.replay import replay, replay_differences, replay_findings
from policy_service.pap.problems import BundleError

Old = Annotated[str, typer.Argument(metavar="OLD", help="The active bundle, for example the folder at main.")]
New = Annotated[str, typer.Argument(metavar="NEW", help="The candidate bundle.")]
Acknowledged = Annotated[
    list[str] | None,
    typer.Option(
        "--ack", metavar="ID", help="The id of an intended loosening, as in brackets. May be repeated."
    ),
]
Calls = Annotated[
    Path | None, typer.Option("--calls", metavar="FILE", help="Recorded calls to replay with both bundles.")
]


def diff(old: Old, new: New, ack: Acknowledged = None, calls: Calls = None, as_json: AsJson = False) -> None:
    """List what NEW permits and OLD did not. Exits 0 if every such loosening is acknowledged."""
    with report_errors():
        before, after = _prepared(old, as_json), _prepared(new, as_json)
        recorded, bad = ([], []) if calls is None else read_recorded_calls(calls, (before, after))
        try:
            answers = replay(before, recorded), replay(after, recorded)
            report = compare(before, after, replay_findings(replay_differences(*answers)))
        finally:
            before.close()
            after.close()
        asked = report.not_acknowledged(ack or ())
        unused = sorted(set(ack or ()) - {finding.id for finding in report.in_direction(Direction.LOOSENING)})
        unknown = sum(
            one.decision is None or other.decision is None for one, other in zip(*answers, strict=True)
        )
        value = _json(report, asked, unused, len(recorded)) | {
            "not_replayable": unknown,
            "bad_lines": [{"line": each.number, "why": each.why} for each in bad],
        }
        replayed = [] if calls is None else [_replay_summary(len(recorded), unknown)]
        print_result(
            value, as_json, "\n".join([*bad_line_messages(bad), *_text(report, asked, unused, replayed)])
        )
        if asked or bad:
            raise typer.Exit(1)


def _prepared(name: str, as_json: bool) -> Bundle:
    try:
        return build_bundle(load_bundle_files(name))
    except BundleError as error:
        problems = [problem_json(each) for each in error.problems]
        print_result(
            {"ok": False, "bundle": name, "problems": problems}, as_json, f"{name} does not load:\n{error}"
        )
        raise typer.Exit(1) from None


def _json(report: DiffReport, asked: list[Finding], unused: list[str], recorded: int) -> dict[str, Any]:
    return {
        "ok": not asked,
        "old": {"digest": report.before.digest, "commit": report.before.commit},
        "new": {"digest": report.after.digest, "commit": report.after.commit},
        **{f"{way.value}": [finding.to_json() for finding in report.in_direction(way)] for way in Direction},
        "not_acknowledged": [finding.id for finding in asked],
        "acknowledged_but_absent": unused,
        "tools": [
            {"tool": one.tool, "how": one.how, "calls": one.count, "why_not_all": list(one.why_not)}
            for one in report.tools
        ],
        "same_in_meaning": list(report.equivalent_files),
        "recorded_calls": recorded,
    }


_HEADS = {
    Direction.LOOSENING: "Loosenings: less is denied or reviewed, or other people, facts, tools or cases",
    Direction.LOOK: "Changes to review: they decide nothing by themselves, or changed no tried decision",
    Direction.TIGHTENING: "Tightenings",
}


def _replay_summary(count: int, unknown: int) -> str:
    text = f"Replayed: {count} recorded calls; facts as recorded, otherwise from each bundle's own sources"
    return f"{text}; {unknown} of them cannot be replayed, see `replay`" if unknown else text


def _text(report: DiffReport, asked: list[Finding], unused: list[str], replayed: list[str]) -> list[str]:
    lines: list[str] = []
    open_ids = {finding.id for finding in asked}
    for way in Direction:
        found = report.in_direction(way)
        if found:
            lines += [f"{_HEADS[way]}:", *(_finding_text(finding, way, open_ids) for finding in found), ""]
    changed = [one for one in report.tools if one.how != "unchanged"]
    if changed:
        lines.append("Tried:")
        for one in changed:
            why = f" ({'; '.join(one.why_not)})" if one.why_not else ""
            lines.append(f"  {one.tool}: {one.how}, {one.count} generated calls{why}")
    if report.equivalent_files:
        lines.append(f"Differ in formatting only: {', '.join(report.equivalent_files)}")
    lines += replayed
    lines += [f"--ack {name} names no loosening of this change; remove it" for name in unused]
    counted = len(report.in_direction(Direction.LOOSENING))
    if asked:
        lines.append(
            f"{len(asked)} loosenings are not acknowledged; if they are intended: "
            + " ".join(f"--ack {f.id}" for f in asked)
        )
    else:
        lines.append("no loosening" if not counted else f"{counted} loosenings, all acknowledged")
    return lines


def _finding_text(finding: Finding, way: Direction, open_ids: set[str]) -> str:
    text = finding.to_text()
    return (
        f"{text}\n      acknowledged" if way is Direction.LOOSENING and finding.id not in open_ids else text
    )
