"""Live calls: evaluate the policy before one runs (`ask: live`), and record what a savepoint rolled back.

Rules: the evaluated call is the call that runs, the same canonical bytes; it runs only on a release. A live effect
cannot wait, because no adapter session is open while people decide. So it is refused if it needs a review, or if the
service does not answer (I-11). The decision is in the service's log, except in a dry run.

An effect that raises leaves no change on its adapter (adapters/protocol.py), nor do the effects it called there.
Effects it called on other adapters stay: they are not in that savepoint.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Final

from countersign.adapters.reads import READS
from countersign.contract import digests
from countersign.contract.admission import load
from countersign.contract.errors import ContractError
from countersign.contract.manifest import ToolManifest
from countersign.contract.states import Verdict
from countersign.contract.wire import Claimed, EvaluationRequest, SubmittedEffect
from countersign.errors import Denied, NotStageable, ReviewRequired, SavepointLost, SessionLost
from countersign.errors.pending import ApprovalRequirement
from countersign.errors.reasons import DenyReason
from countersign.journal import StagedRow
from countersign.runtime import Engine
from countersign.tools.definition import Tool

OnUndone = Callable[[Sequence[StagedRow], BaseException], None]
OnReturned = Callable[[Any], None]

_running: ContextVar[LiveEffectRun | None] = ContextVar("countersign_running_live_effect", default=None)

ALL_LOST: Final = (SavepointLost, SessionLost)
"""The state is unknown, so nothing is recorded before all of it is undone."""


class LiveEffectRun:
    """One live effect from the moment it is journaled; `adapter` is the name of its adapter."""

    def __init__(self, row: StagedRow, adapter: str) -> None:
        self.row, self.adapter = row, adapter
        self._inside: list[LiveEffectRun] = []
        outer = _running.get()
        if outer is not None:
            outer._inside.append(self)

    def run(self, act: Callable[[], Any], undone: OnUndone, returned: OnReturned, *, awaited: bool) -> Any:
        """Run it and pass the result to `returned`. If it raises, pass the rolled-back effects and the error to
        `undone`.
        """
        if awaited:
            return self._run_awaited(act, undone, returned)
        with self._noted(undone):
            answer = act()
        returned(answer)
        return answer

    async def _run_awaited(self, act: Callable[[], Any], undone: OnUndone, returned: OnReturned) -> Any:
        with self._noted(undone):
            answer = act()
            if inspect.isawaitable(answer):  # a replay returns a recorded result
                answer = await answer
        returned(answer)
        return answer

    @contextmanager
    def _noted(self, undone: OnUndone) -> Iterator[None]:
        token = _running.set(self)
        try:
            yield
        except ALL_LOST:
            raise
        except BaseException as error:
            undone([*self._on(self.adapter)], error)
            raise
        finally:
            _running.reset(token)

    def _on(self, adapter: str) -> Iterator[StagedRow]:
        """This effect and those it called, on one adapter."""
        if self.adapter == adapter:
            yield self.row
        for one in self._inside:
            yield from one._on(adapter)


@dataclass(frozen=True, slots=True)
class LiveCallRequest:
    """One live call that is about to run."""

    tool: Tool
    args: bytes
    n: int
    call_key: str


async def require_released(
    engine: Engine, call: LiveCallRequest, *, run_key: str, txn: str, claimed: Claimed | None, noted: bool
) -> None:
    """Evaluate the policy for one live call if it requires that, and return only if it may run.

    Raises:
        Denied: with the policy's reasons.
        ReviewRequired: it needs a review.
        ServiceUnavailable: the service did not answer, or it is not known whether the policy must be evaluated.
        ServiceRefused: the service refuses this agent, for instance while it is stopped.
        RegistrationError: the reviewed manifest does not fit the code.
        NotStageable: it has no adapter, and its reviewed manifest does not declare that it only reads.
    """
    tool = call.tool
    manifest = await engine.manifests.live_policy_manifest(tool, engine.service, engine.clock)
    if tool.adapter is READS:
        _require_read(tool, engine)
    if manifest is None:
        return
    question = EvaluationRequest(
        run_key=run_key, effects=(_submitted(call, manifest),), claimed=claimed, live=noted
    )
    (decided,) = (await engine.service.evaluate(question)).effects
    if decided.decision.outcome is Verdict.RELEASE:
        return
    engine.manifests.forget(tool.name)  # the reviewed manifest may have changed
    effect_id = digests.effect_id(txn=txn, call_key=call.call_key)
    if decided.decision.outcome is Verdict.REVIEW:
        raise ReviewRequired(
            run_key, txn, tool.name, effect_id, tuple(map(ApprovalRequirement.of, decided.needs))
        )
    raise Denied(run_key, txn, DenyReason.of(tool.name, effect_id, decided.decision))


def _require_read(tool: Tool, engine: Engine) -> None:
    """Nothing undoes it, so people must have agreed that it changes nothing: its code could claim that of anything."""
    reviewed = engine.manifests.reviewed_live_manifest(tool)
    if reviewed is None or not reviewed.reads:
        found = "no reviewed manifest" if reviewed is None else "a reviewed manifest without the group 'read'"
        raise NotStageable(
            f'{tool.name} is live without an adapter, and has {found}; have `"groups": ["read"]` reviewed, give it '
            "an adapter that undoes it, or declare it staged"
        )


def _submitted(call: LiveCallRequest, manifest: ToolManifest) -> SubmittedEffect:
    args = load(call.args)
    if not isinstance(args, dict):
        raise AssertionError("a signature freezes arguments to one object")
    try:
        resource = manifest.resource_of(args)
    except ContractError as error:
        raise NotStageable(f"the call of {call.tool.name!r} is not a valid effect: {error}") from error
    return SubmittedEffect(
        tool=call.tool.name,
        tool_digest=manifest.digest,
        args=args,
        n=call.n,
        call_key=call.call_key,
        resource=resource,
    )
