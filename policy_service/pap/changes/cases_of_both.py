"""The cases of both bundles: which are gone or ask less, and whether the new bundle passes the old one's and its own.

One place runs cases (`_runs`), so that it can be exchanged for the product's own runner. Rules kept here: a case is
known by what it says (`it`) and its file; one that is gone, or changed other than to a stricter outcome, is a
loosening; so is every case of the active bundle that the candidate does not pass.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

import yaml

from policy_service.domain.decision import Decision
from policy_service.domain.gates import merge
from policy_service.domain.question import AgentPrincipal, Question
from policy_service.pap.bundle import Bundle
from policy_service.pap.changes.findings import Finding, Way
from policy_service.pdp.engine import decide

Cases = dict[tuple[str, str], dict[str, Any]]

NOW: Final = datetime(2026, 11, 21, 22, 0, tzinfo=UTC)
"""The time of a case that names none."""

_STRICTNESS: Final = {"release": 0, "review": 1, "deny": 2}


def case_findings(before: Bundle, after: Bundle) -> Iterator[Finding]:
    """Everything about cases that an author must know before the new bundle is active."""
    mine, theirs = before.source.files, after.source.files
    yield from _changed(mine, theirs)
    yield from _run(before, after, mine, theirs)


def _run(
    before: Bundle, after: Bundle, mine: Mapping[str, bytes], theirs: Mapping[str, bytes]
) -> Iterator[Finding]:
    failed_before, failing, own = _runs(before, mine), _runs(after, mine), _runs(after, theirs)
    for it, why in failing.items():
        if it in failed_before:
            yield _finding(
                Way.LOOK, "case-fails-in-both", it, f"the active bundle does not pass it either: {why.words}"
            )
        elif why.stricter and it not in own:
            words = f"the new bundle's own case says so too: answered more strictly, {why.words}"
            yield _finding(Way.LOOK, "active-case-stricter", it, words)
        else:
            yield _finding(
                Way.LOOSENING,
                "active-case-fails",
                it,
                f"a case of the active bundle does not hold: {why.words}",
            )
    for it, why in own.items():
        if it not in failing and it not in failed_before:
            yield _finding(
                Way.LOOSENING, "own-case-fails", it, f"a case of the new bundle does not hold: {why.words}"
            )


@dataclass(frozen=True, slots=True)
class _Failure:
    """Why a case does not hold; ``stricter`` when the only thing wrong is that the answer is a stricter one."""

    words: str
    stricter: bool = False


def _changed(before: Mapping[str, bytes], after: Mapping[str, bytes]) -> Iterator[Finding]:
    try:
        mine, theirs = cases_of(before), cases_of(after)
    except ValueError as error:
        if _case_files(before) != _case_files(after):
            yield _finding(Way.LOOSENING, "cases", "cases", f"cases that cannot be read changed: {error}")
        return
    gone = mine.keys() - theirs.keys()
    moved = {it: case for (_, it), case in theirs.items()}
    for key in sorted(mine.keys() | theirs.keys()):
        old, new = mine.get(key), theirs.get(key)
        if key in gone:
            new = moved.get(key[1])  # the same case in another file is no loss
        if old is None or old == new:
            if old is None and key[1] not in {it for _, it in mine}:
                yield _finding(
                    Way.LOOK, "case", key[1], f"a new case: {_asks(theirs[key])}", key[0], theirs[key]
                )
            continue
        if new is None:
            yield _finding(
                Way.LOOSENING, "case", key[1], f"the case is gone; it asked for {_asks(old)}", key[0], old
            )
            continue
        only = {name for name in old.keys() | new.keys() if old.get(name) != new.get(name)}
        stricter = _STRICTNESS.get(new.get("expect", ""), -1) > _STRICTNESS.get(old.get("expect", ""), 3)
        way = (
            Way.TIGHTENING if stricter and only <= {"expect", "gates", "needs", "reasons"} else Way.LOOSENING
        )
        words = f"the case changed in {', '.join(sorted(only))}: {_asks(old)} becomes {_asks(new)}"
        yield _finding(way, "case", key[1], words, key[0], [old, new])


def _asks(case: Mapping[str, Any]) -> str:
    beside = {name: case[name] for name in ("gates", "needs", "reasons") if case.get(name)}
    return f"{case.get('expect')}{f' {beside}' if beside else ''}"


def _case_files(files: Mapping[str, bytes]) -> dict[str, bytes]:
    return {name: raw for name, raw in files.items() if name.startswith("cases/")}


def cases_of(files: Mapping[str, bytes]) -> Cases:
    """Every case by file and `it`, with its agent written out and everything the file says for all of them.

    Raises:
        ValueError: a file is not one of cases.
    """
    found: Cases = {}
    for file, raw in _case_files(files).items():
        try:
            told = yaml.safe_load(raw.decode("utf-8")) or {}
        except (yaml.YAMLError, UnicodeDecodeError, RecursionError) as error:
            raise ValueError(f"{file}: {error}") from error
        if not isinstance(told, dict) or not isinstance(told.get("cases", []), list):
            raise ValueError(f"{file} holds no list of cases")
        shared = {name: value for name, value in told.items() if name not in ("agents", "cases")}
        for number, case in enumerate(told.get("cases", [])):
            if not isinstance(case, dict):
                raise ValueError(f"{file}: case {number + 1} is not a table")
            it, agents = str(case.get("it", f"case {number + 1}")), told.get("agents") or {}
            alias = case.get("agent")
            agent = agents.get(alias, alias) if isinstance(alias, str) else alias
            found[file, it if (file, it) not in found else f"{it} (again, {number + 1})"] = {
                **shared, **case, "agent": agent,
            }  # fmt: skip
    return found


def _runs(bundle: Bundle, files: Mapping[str, bytes]) -> dict[str, _Failure]:
    """The cases in ``files`` that do not hold in the bundle, each with why."""
    try:
        cases = cases_of(files)
    except ValueError as error:
        return {"cases": _Failure(str(error))}
    return {it: why for (_, it), case in cases.items() if (why := _difference(bundle, case))}


def _difference(bundle: Bundle, case: Mapping[str, Any]) -> _Failure | None:
    agent, args, tool = case.get("agent"), case.get("args", {}), str(case.get("tool"))
    if not isinstance(agent, dict) or not isinstance(args, dict):
        return _Failure("it does not say which agent calls with which args")
    manifest = bundle.manifests.get(tool)
    name = str(agent.get("name"))
    raw = json.dumps(args).encode()
    facts = asyncio.run(bundle.facts_for(tool, args, raw, agent=name, now=NOW))
    principal = AgentPrincipal(
        name, agent.get("owner"), frozenset(agent.get("roles", ())), frozenset(agent.get("teams", ()))
    )
    digest = manifest.digest if manifest else "0" * 64
    return _against(case, decide(bundle.rules, Question(principal, tool, digest, args, facts, NOW)))


def _against(case: Mapping[str, Any], decision: Decision) -> _Failure | None:
    found = {
        "expect": decision.outcome.value,
        "gates": [gate.policy_id for gate in decision.gates],
        "needs": {merged.key: merged.quorum for merged in merge(decision.gates)},
        "reasons": [reason.policy or reason.code for reason in decision.reasons],
    }
    expected = {"expect": case.get("expect")} | {
        name: case[name] for name in ("gates", "needs", "reasons") if name in case
    }
    wrong = [
        f"{name} is {found[name]}, not {expected[name]}" for name in expected if found[name] != expected[name]
    ]
    expects = _STRICTNESS.get(str(case.get("expect")), 3)
    return _Failure("; ".join(wrong), _STRICTNESS[decision.outcome.value] > expects) if wrong else None


def _finding(way: Way, kind: str, it: str, words: str, file: str = "", content: Any = None) -> Finding:
    lines = (f"in {file}",) if file else ()
    return Finding(way, kind, it, words, lines, content=content, files=frozenset({file} if file else ()))
