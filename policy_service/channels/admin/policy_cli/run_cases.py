"""``policy-service test``: run a bundle's cases, report coverage and JUnit XML, and run mutation tests."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final
from xml.etree import ElementTree as Xml

import typer

from policy_service.channels.admin.output import AsJson, print_result, report_errors
from policy_service.channels.admin.policy_cli.bundles import load_bundle_files
from policy_service.channels.admin.policy_cli.check import BundleName
from policy_service.errors import StartError
from policy_service.pap.bundle import Bundle, build_bundle
from policy_service.pap.policy_tests.coverage import (
    MutationResult,
    PolicyCoverage,
    counted,
    coverage_table,
    measure_coverage,
    noticing,
    read_acknowledged_mutants,
    run_mutants,
    unacknowledged_mutants,
)
from policy_service.pap.policy_tests.mutants import Mutant
from policy_service.pap.policy_tests.parser import read_cases
from policy_service.pap.policy_tests.runner import CaseResult, PreparedCase, prepare_cases
from policy_service.pap.problems import Problem

_NOT_IN_XML: Final = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def junit_report(answered: Sequence[CaseResult]) -> bytes:
    """One suite for each file of cases, one test case for each case. Characters XML cannot hold become U+FFFD."""
    root = Xml.Element("testsuites", tests=str(len(answered)), failures=str(_failures(answered)))
    for file in dict.fromkeys(each.case.file for each in answered):
        of_file = [each for each in answered if each.case.file == file]
        suite = Xml.SubElement(
            root,
            "testsuite",
            name=_xml_text(file),
            tests=str(len(of_file)),
            failures=str(_failures(of_file)),
            errors="0",
        )
        for each in of_file:
            _test_case(suite, each)
    Xml.indent(root)
    return bytes(Xml.tostring(root, encoding="utf-8", xml_declaration=True))


def _test_case(suite: Xml.Element, answered: CaseResult) -> None:
    case = answered.case
    test = Xml.SubElement(suite, "testcase", name=_xml_text(case.it), classname=_xml_text(case.file))
    test.set("file", _xml_text(case.file))
    test.set("line", str(case.line))
    if not answered.holds:
        failure = Xml.SubElement(test, "failure", message=_xml_text(answered.differences[0]))
        failure.text = _xml_text("\n".join((case.place, *answered.differences)))


def _failures(answered: Sequence[CaseResult]) -> int:
    return sum(not each.holds for each in answered)


def _xml_text(text: str) -> str:
    return _NOT_IN_XML.sub("\ufffd", text)


WithMutants = Annotated[
    bool,
    typer.Option("--mutate", help="Mutate each policy; fail if no case detects a mutant."),
]
WithCoverage = Annotated[bool, typer.Option("--coverage", help="Print which policies the cases use.")]
JunitFile = Annotated[
    Path | None, typer.Option("--junit", metavar="FILE", help="Write JUnit XML to this file.")
]


@dataclass(frozen=True, slots=True)
class _MutationResult:
    """The mutation result: unacknowledged survivors, and acknowledgements that match no survivor."""

    mutation: MutationResult
    left: list[Mutant]
    stale: list[Problem]

    @property
    def passed(self) -> bool:
        return not self.left and not self.stale


def run_cases(
    bundle: BundleName = None,
    mutate_rules: WithMutants = False,
    coverage: WithCoverage = False,
    junit: JunitFile = None,
    as_json: AsJson = False,
) -> None:
    """Run a bundle's cases. Fails without cases, if one fails, or with --mutate if a mutant is not detected."""
    with report_errors(as_json):
        _run(bundle, mutate_rules, coverage, junit, as_json)


def _run(name: str | None, mutate_rules: bool, coverage: bool, junit: Path | None, as_json: bool) -> None:
    loaded = build_bundle(load_bundle_files(name))
    try:
        prepared = prepare_cases(loaded, read_cases(loaded.source.files))
        answered = [case.ask(loaded.rules) for case in prepared]
        covered = measure_coverage(loaded, prepared, answered)
        tried = _try_mutants(loaded, prepared, answered) if mutate_rules else None
    finally:
        loaded.close()
    if junit is not None:
        _require_outside_bundle(junit, loaded)
        _write(junit, junit_report(answered))
    wrong = [each for each in answered if not each.holds]
    passed = bool(answered) and not wrong and (tried is None or tried.passed)
    lines = _lines(answered, wrong, covered if coverage else (), tried)
    print_result(_json(passed, loaded, answered, covered, tried), as_json, "\n".join(lines))
    if not passed:
        raise typer.Exit(1)


def _try_mutants(loaded: Bundle, prepared: list[PreparedCase], answered: list[CaseResult]) -> _MutationResult:
    acknowledged = read_acknowledged_mutants(loaded.source.files)
    mutation = run_mutants(loaded, prepared, answered)
    return _MutationResult(mutation, *unacknowledged_mutants(mutation.survived, acknowledged))


def _require_outside_bundle(file: Path, loaded: Bundle) -> None:
    folder = loaded.source.folder
    if folder is not None and file.resolve().is_relative_to(folder.resolve()):
        raise StartError(
            f"{str(file)!r} is inside the bundle, where reports are not allowed; name another --junit FILE"
        )


def _write(file: Path, report: bytes) -> None:
    try:
        file.write_bytes(report)
    except OSError as error:
        raise StartError(
            f"{str(file)!r} cannot be written: {error.strerror}; name another --junit FILE"
        ) from error


def _lines(
    answered: list[CaseResult],
    wrong: list[CaseResult],
    covered: tuple[PolicyCoverage, ...],
    tried: _MutationResult | None,
) -> list[str]:
    lines = [f"{each.case.place}: {each.case.it}: {'; '.join(each.differences)}" for each in wrong]
    if tried is not None:
        lines += [_survivor(mutant) for mutant in tried.left] + [str(problem) for problem in tried.stale]
    lines += [coverage_table(covered)] if covered else []
    lines.append(f"{len(answered) - len(wrong)} cases pass, {len(wrong)} fail")
    if not answered:
        lines.append("the bundle has no cases; write the first into cases/NAME.yaml")
    if tried is not None:
        lines.append(counted(tried.mutation, len(tried.mutation.survived) - len(tried.left)))
    return lines


def _survivor(mutant: Mutant) -> str:
    return f"{mutant.place}: {mutant.of.source.id}: survives: {mutant.name}; {noticing(mutant)}"


def _json(
    passed: bool,
    loaded: Bundle,
    answered: list[CaseResult],
    covered: tuple[PolicyCoverage, ...],
    tried: _MutationResult | None,
) -> dict[str, Any]:
    result: dict[str, Any] = {
        "ok": passed,
        "digest": loaded.digest,
        "commit": loaded.commit,
        "cases": [
            {"file": each.case.file, "line": each.case.line, "it": each.case.it, "holds": each.holds,
             "differences": list(each.differences)}
            for each in answered
        ],
        "coverage": [row.to_json() for row in covered],
    }  # fmt: skip
    if tried is not None:
        result["mutants"] = {
            "noticed": tried.mutation.noticed,
            "refused": tried.mutation.refused,
            "acknowledged": len(tried.mutation.survived) - len(tried.left),
            "survived": [
                {"policy": each.of.source.id, "place": each.place, "mutant": each.name} for each in tried.left
            ],
            "stale": [problem.message for problem in tried.stale],
        }
    return result
