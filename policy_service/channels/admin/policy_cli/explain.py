"""``policy-service explain FILE|-|EFFECT_ID``: why a call came to what it did, and what would release it."""

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
from policy_service.channels.admin.socket import run_admin_command
from policy_service.domain.decision import Decision
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
from policy_service.queries.effect_text import is_hidden
from policy_service.settings import load_settings

What = Annotated[
    str,
    typer.Argument(
        metavar="FILE|-|EFFECT_ID",
        help="A call as in replay, from a file or standard input, or a stored effect.",
    ),
]
BundleName = Annotated[
    str | None,
    typer.Argument(metavar="[BUNDLE]", help="The bundle's folder; without one that of the settings."),
]
WithSecrets = Annotated[
    bool, typer.Option("--with-secrets", help="Show arguments that the manifest calls secret.")
]
_EFFECT: Final = re.compile(r"[0-9a-f]{64}\Z")


def explain_call(
    what: What, bundle: BundleName = None, with_secrets: WithSecrets = False, as_json: AsJson = False
) -> None:
    """Say which rules held and which did not and why, whom the gates ask, and the smallest change that releases."""
    with report_errors(as_json):
        call = _call(what)
        prepared = build_bundle(load_bundle_files(bundle))
        try:
            _require_known_meters(call, prepared)
            told = _explained(call, prepared, with_secrets)
            unknown = missing_meters(call, prepared)
        except ValueError as error:
            raise InvalidRequestError(f"{what}: {error}") from None
        finally:
            prepared.close()
        value = told.to_json() | {
            "id": call.name or None,
            "decided_then": call.decided,
            "decisions": list(call.decisions),
            "differs": _differs(told.decision, call),
            "meters_not_known": unknown,
        }
        lines = [*_recorded_decisions(told.decision, call), *_text(told, call, unknown)]
        print_result(value, as_json, "\n".join(lines))


def _explained(call: RecordedCall, bundle: Bundle, with_secrets: bool) -> Explanation:
    """The call under today's bundle; what was secret on that day stays it, whatever the manifest says today."""
    version = bundle.version(call.tool, recorded_tool_digest(call, bundle))
    said = () if version is None else tuple(version.manifest.secret)
    secret = () if with_secrets else (*said, *call.secret)
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
        raise InvalidRequestError(f"{what} holds no call: {error}") from None


def _differs(today: Decision, call: RecordedCall) -> bool | None:
    """Whether today's answer is another than the first of that day, to the same question; None when none is stored."""
    if not call.decisions:
        return None
    then = call.decisions[0]
    return (today.outcome.value, list(today.policies)) != (then["outcome"], list(then["policies"]))


def _recorded_decisions(today: Decision, call: RecordedCall) -> list[str]:
    """What the service answered, by which rules of which commit, before what it would answer today."""
    if not call.decisions:
        return []
    lines = [f"Decided about {call.name}, oldest first:"]
    for each in call.decisions:
        by = ", ".join(each["policies"]) or "no policy"
        lines += [
            f"  {each['decided_at']} {each['cause']}: {each['outcome']} by {by}",
            f"      commit {each['commit']}, bundle {each['bundle']}",
        ]
    now = f"{today.outcome} by {', '.join(today.policies) or today.code}"
    if _differs(today, call):
        return [*lines, f"Today's bundle answers otherwise than at first: {now}", ""]
    return [*lines, "Today's bundle answers as at first, by the same policies", ""]


def _text(told: Explanation, call: RecordedCall, unknown: list[str]) -> list[str]:
    decision = told.decision
    then = f" (then: {call.decided})" if call.decided else ""
    lines = [f"{decision.outcome} of {call.tool} by {decision.bundle} at {decision.commit}{then}"]
    lines += [
        f"  history.{name} is not told and was read as 0; the answer may turn on it" for name in unknown
    ]
    lines += [f"  {reason.text}" for reason in decision.reasons]
    lines += [f"  asks {each}" for each in told.asks]
    if decision.unseen:
        lines.append(f"  policy cannot weigh: {', '.join(decision.unseen)}")
    for held, head in ((True, "Held:"), (False, "Did not hold:")):
        chosen = [one for one in told.policies if one.held is held]
        if chosen:
            lines.append(head)
        for one in chosen:
            lines.append(
                f"  {one.place} {one.effect} {one.id}" + ("" if one.failed is None else f": {one.failed}")
            )
            lines += [f"      {line}" for line in one.text.splitlines()]
    if told.read:
        lines.append("Looked at:")
        lines += [f"  {name} = {value}" for name, value in told.read.items()]
    return [*lines, *_release_hints(told)]


def _release_hints(told: Explanation) -> list[str]:
    if told.decision.outcome.value == "release":
        return []
    lines = []
    if told.release:
        lines += ["Would be released with:", *(f"  {each}" for each in told.release)]
    else:
        lines.append(
            f"No change of one or two arguments was found that releases it ({told.searched} calls tried)"
        )
    if told.beside:
        lines += ["Would be released if the world were other:", *(f"  {each}" for each in told.beside)]
    return lines
