"""The policy's decision on a call, without making it."""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any, Final, Protocol

from countersign.contract.wire import DecisionView, EvaluationRequest, SubmittedEffect
from countersign.errors import MisuseError, ServiceRefused
from countersign.runtime import Runtime

_UNREVIEWED_DIGEST: Final = "0" * 64


class Decide(Protocol):
    """The type of the fixture `countersign_decide`."""

    def __call__(self, tool: str, args: Mapping[str, Any], *, unknown: bool = False) -> DecisionView:
        """The decision on one call; a tool that the bundle lacks is an error unless `unknown` is set."""


def decide(
    runtime: Runtime, tool: str, args: Mapping[str, Any], *, unknown: bool = False, key: str = "what-if"
) -> DecisionView:
    """The decision of the active bundle on one call of this agent, with its reasons. Nothing is recorded.

    `unknown`: the tool is deliberately one without a reviewed manifest.

    Raises:
        MisuseError: the bundle has no such tool, and `unknown` is not set: a misspelt name would appear as a denial.
        ServiceRefused: the service refused the request.
    """
    client = runtime.client()
    try:
        digest = client.manifest(tool).digest
    except ServiceRefused as refused:
        if not refused.is_not_found:
            raise
        if not unknown:
            raise MisuseError(_not_there(runtime, tool)) from None
        digest = _UNREVIEWED_DIGEST  # the service decides about a tool it does not know
    effect = SubmittedEffect(tool=tool, tool_digest=digest, args=dict(args))
    return client.evaluate(EvaluationRequest(run_key=key, effects=(effect,))).effects[0].decision


def _not_there(runtime: Runtime, tool: str) -> str:
    names = [one.name for one in runtime.registry]
    close = [] if tool in names else get_close_matches(tool, names)
    meant = f"did you mean {close[0]!r}?" if close else "its reviewed manifest is missing in tools/."
    return f"the bundle holds no tool {tool!r}; {meant} To test an unknown tool, write unknown=True"
