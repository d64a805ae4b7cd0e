"""Asking the policy about a live effect before it runs, where its reviewed manifest says `ask: live`.

Rules: what is asked is what runs, the same canonical bytes; only a release lets it run. A live effect cannot wait, for
no adapter transaction is open while people decide, so what people would have to agree to is refused; and whatever keeps
the service from answering refuses as well (I-11). The answer stands in the service's log, but of a dry run, of which
nothing is kept anywhere.
"""

from __future__ import annotations

from dataclasses import dataclass

from countersign.adapters.reads import READS
from countersign.contract import names
from countersign.contract.admission import load
from countersign.contract.errors import ContractError
from countersign.contract.manifest import ToolManifest
from countersign.contract.states import Verdict
from countersign.contract.wire import Claimed, EvaluationRequest, SubmittedEffect
from countersign.engine import Engine
from countersign.errors import Denied, NotStageable, ReviewRequired
from countersign.errors.reasons import Asks, DenyReason
from countersign.tools.tool import Tool


@dataclass(frozen=True, slots=True)
class LiveCallAsked:
    """One live call that is about to run."""

    tool: Tool
    args: bytes
    n: int
    call_key: str


async def require_released(
    engine: Engine, call: LiveCallAsked, *, run_key: str, txn: str, claimed: Claimed | None, noted: bool
) -> None:
    """Ask about one live call, if it is one that is asked about, and come back only where it may run.

    Raises:
        Denied: with the policy's reasons.
        ReviewRequired: people would have to agree.
        ServiceUnavailable: nobody could be asked, or it is not known whether anybody is to be.
        ServiceRefused: the service takes no question of this agent, for instance while it is stopped.
        RegistrationError: the reviewed manifest does not fit the code.
        NotStageable: it has no adapter, and its reviewed manifest does not say that it only reads.
    """
    tool = call.tool
    manifest = await engine.manifests.asked_about(tool, engine.service, engine.clock)
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
    engine.manifests.forget(tool.name)  # what was reviewed may be another one by now
    effect_id = names.effect_id(txn=txn, call_key=call.call_key)
    if decided.decision.outcome is Verdict.REVIEW:
        raise ReviewRequired(run_key, txn, tool.name, effect_id, tuple(map(Asks.of, decided.needs)))
    raise Denied(run_key, txn, DenyReason.of(tool.name, effect_id, decided.decision))


def _require_read(tool: Tool, engine: Engine) -> None:
    """Nothing undoes it, so people must have agreed that it changes nothing; its code may say so of anything."""
    reviewed = engine.manifests.reviewed_live(tool)
    if reviewed is None or not reviewed.reads:
        found = "no reviewed manifest" if reviewed is None else "a reviewed manifest without the group 'read'"
        raise NotStageable(
            f'{tool.name} is live without an adapter, and has {found}; have `"groups": ["read"]` reviewed, give it '
            "an adapter that undoes it, or declare it staged"
        )


def _submitted(call: LiveCallAsked, manifest: ToolManifest) -> SubmittedEffect:
    args = load(call.args)
    if not isinstance(args, dict):
        raise AssertionError("a signature freezes arguments to one object")
    try:
        resource = manifest.resource_of(args)
    except ContractError as error:
        raise NotStageable(f"the call of {call.tool.name!r} makes no sound effect: {error}") from error
    return SubmittedEffect(
        tool=call.tool.name,
        tool_digest=manifest.digest,
        args=args,
        n=call.n,
        call_key=call.call_key,
        resource=resource,
    )
