"""What the policy would say to a call, without making it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from countersign.contract.wire import DecisionView, EvaluationRequest, SubmittedEffect
from countersign.errors import ServiceRefused
from countersign.runtime import Runtime

_NOBODY_REVIEWED: Final = "0" * 64


def decide(runtime: Runtime, tool: str, args: Mapping[str, Any], *, key: str = "what-if") -> DecisionView:
    """The decision of the active bundle about one call of this agent, with its reasons. Nothing is recorded.

    Raises:
        ServiceRefused: the service refused the question itself.
    """
    client = runtime.client()
    try:
        digest = client.manifest(tool).digest
    except ServiceRefused as refused:
        if refused.status != 404:
            raise
        digest = _NOBODY_REVIEWED  # the service says itself what becomes of a tool it does not know
    effect = SubmittedEffect(tool=tool, tool_digest=digest, args=dict(args))
    return client.evaluate(EvaluationRequest(run_key=key, effects=(effect,))).effects[0].decision
