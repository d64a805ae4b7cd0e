"""``policy-service explain FILE|-|EFFECT_ID``: why a call was decided as it was, and what would release it."""

from __future__ import annotations

import asyncio
import json
import re
import sys
from functools import partial
from pathlib import Path
from typing import Annotated, Final

import typer

from policy_service.channels.admin.output import AsJson, print_result, report_errors
from policy_service.channels.admin.policy_cli.bundles import load_bundle_files
from policy_service.channels.admin.policy_cli.check import BundleName
from policy_service.channels.admin.socket import run_admin_command
from policy_service.domain.policy_request import Decision
from policy_service.errors import InvalidRequestError
from policy_service.pap.bundle import Bundle, build_bundle
from policy_service.pap.diff.explain import Explanation, explain
from policy_service.pap.diff.recorded_calls import (
    RecordedCall,
    build_question,
    drop_unknown_meters,
    missing_meters,
    read_call,
    recorded_tool_digest,
)
from policy_service.pap.parts import read_parts
from policy_service.queries.effects import is_hidden
from policy_service.settings import load_settings

What = Annotated[
    str,
    typer.Argument(
        metavar="FILE|-|EFFECT_ID",
        help="A call in the format of replay, from a file or standard input, or the id of a stored effect.",
    ),
]
WithSecrets = Annotated[
    bool, typer.Option("--with-secrets", help="Show arguments that the manifest marks as secret.")
]
_EFFECT: Final = re.compile(r"[0-9a-f]{64}\Z")


def explain_call(
    what: What, bundle: BundleName = None, with_secrets: WithSecrets = False, as_json: AsJson = False
) -> None:
    """Print which policies applied and why others did not, the gates, and the smallest change that releases."""
    with report_errors(as_json):
        call = _call(what)
        prepared = build_bundle(load_bundle_files(bundle))
        try:
            _require_known_meters(call, prepared)
            explanation = _explained(call, prepared, with_secrets)
            unknown = missing_meters(call, prepared)
        except ValueError as error:
            raise InvalidRequestError(f"{what}: {error}") from None
        finally:
            prepared.close()
        value = explanation.to_json() | {
            "id": call.name or None,
            "decided_then": call.decided,
            "decisions": list(call.decisions),
            "differs": _differs(explanation.decision, call),
            "meters_not_known": unknown,
        }
        lines = [*_recorded_decisions(explanation.decision, call), *_text(explanation, call, unknown)]
        print_result(value, as_json, "\n".join(lines))


def _explained(call: RecordedCall, bundle: Bundle, with_secrets: bool) -> Explanation:
    """Explain the call with today's bundle. Arguments that were secret when it was recorded stay secret."""
    version = bundle.version(call.tool, recorded_tool_digest(call, bundle))
    marked = () if version is None else tuple(version.manifest.secret)
    secret = () if with_secrets else (*marked, *call.secret)
    question = asyncio.run(build_question(call, bundle, read_parts(bundle.source.files)[0]))
    return explain(bundle, question, partial(is_hidden, secret))


def _require_known_meters(call: RecordedCall, bundle: Bundle) -> None:
    for bad in drop_unknown_meters([call], [bundle])[1]:
        raise ValueError(bad.why)


def _call(what: str) -> RecordedCall:
    if _EFFECT.match(what):
        found = run_admin_command(load_settings(), "recorded-call", {"effect_id": what})
        return read_call(json.dumps(found))
    try:
        text = sys.stdin.read() if what == "-" else Path(what).read_text(encoding="utf-8")
        return read_call(text)
    except OSError as error:
        raise InvalidRequestError(
            f"{what} cannot be read: {error.strerror}; name a file, - or an effect id"
        ) from None
    except (ValueError, TypeError, AttributeError, RecursionError) as error:
        raise InvalidRequestError(f"{what} is not a call: {error}") from None


def _differs(today: Decision, call: RecordedCall) -> bool | None:
    """Whether today's decision differs from the first recorded one; None if none is recorded."""
    if not call.decisions:
        return None
    then = call.decisions[0]
    return (today.outcome.value, list(today.policies)) != (then["outcome"], list(then["policies"]))


def _recorded_decisions(today: Decision, call: RecordedCall) -> list[str]:
    """The recorded decisions with their policies and commits."""
    if not call.decisions:
        return []
    lines = [f"Decisions on {call.name}, oldest first:"]
    for each in call.decisions:
        by = ", ".join(each["policies"]) or "no policy"
        lines += [
            f"  {each['decided_at']} {each['cause']}: {each['outcome']} by {by}",
            f"      commit {each['commit']}, bundle {each['bundle']}",
        ]
    now = f"{today.outcome} by {', '.join(today.policies) or today.code}"
    if _differs(today, call):
        return [*lines, f"Today's bundle decides differently: {now}", ""]
    return [*lines, "Today's bundle decides the same, by the same policies", ""]


def _text(explanation: Explanation, call: RecordedCall, unknown: list[str]) -> list[str]:
    decision = explanation.decision
    then = f" (then: {call.decided})" if call.decided else ""
    lines = [f"{decision.outcome} of {call.tool} by {decision.bundle} at {decision.commit}{then}"]
    lines += [
        f"  history.{name} is not recorded and was read as 0; the decision may depend on it"
        for name in unknown
    ]
    lines += [f"  {reason.text}" for reason in decision.reasons]
    lines += [f"  asks {each}" for each in explanation.asks]
    if decision.unseen:
        lines.append(
            f"  policy cannot evaluate: {', '.join(decision.unseen)}; a permit with "
            f'@unseen("{",".join(decision.unseen)}") lets such a call pass without people'
        )
    for held, head in ((True, "Applied:"), (False, "Did not apply:")):
        chosen = [one for one in explanation.policies if one.held is held]
        if chosen:
            lines.append(head)
        for one in chosen:
            lines.append(
                f"  {one.place} {one.effect} {one.id}" + ("" if one.failed is None else f": {one.failed}")
            )
            lines += [f"      {line}" for line in one.text.splitlines()]
    if explanation.read:
        lines.append("Attributes read:")
        lines += [f"  {name} = {value}" for name, value in explanation.read.items()]
    return [*lines, *_release_hints(explanation)]


def _release_hints(explanation: Explanation) -> list[str]:
    if explanation.decision.outcome.value == "release":
        return []
    lines = []
    if explanation.release:
        lines += ["Would be released with:", *(f"  {each}" for each in explanation.release)]
    else:
        lines.append(f"No change of one or two arguments releases it ({explanation.searched} calls tried)")
    if explanation.other_facts:
        lines += ["Would be released with other facts:", *(f"  {each}" for each in explanation.other_facts)]
    return lines
