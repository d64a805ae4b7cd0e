"""Asking a probe what became of a call whose outcome nobody knows: it fires nothing, so it goes before every retry that
has to be asked for, and before giving up.

Rules: a probe is asked only for a call that is in the journal as FIRING or unknown, with the approved bytes and the
call key, never in a rehearsal. "It has happened" counts at once. "It has not happened" is true of the moment it was
said, and the request may still be on its way: it counts once the tool's timeout has passed since the call ended at the
latest, or where the probe says that it is final; and not at all of a call that was left running, for nobody knows when
that ends. What it raises, what comes too late and what is no answer means that nobody knows, as before.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from countersign import tracing
from countersign.commit.plan import PlannedCall
from countersign.contract.states import Outcome
from countersign.errors import NotStageable
from countersign.journal import EffectRecord, LocalState
from countersign.runtime import Engine
from countersign.texts import storable, text_of
from countersign.tools.context import FiringEffect, bind_effect
from countersign.tools.definition import DidNotHappen, Happened, Probe, ProbeAnswer, Unsure
from countersign.tools.results import unfinished_error

log: Final = logging.getLogger("countersign")

CRASHED: Final = "its process ended while it was firing"
"""The journal's word of a call that nobody saw the end of."""

LEFT_RUNNING: Final = "left running"
"""How the journal's word of a call begins that nobody waited for to its end: what it still does is not known."""

# seconds: the longest timeout after which the process that called asks once more itself
_MAX_LOCAL_WAIT: Final = 10


@dataclass(frozen=True, slots=True)
class UncertainCall:
    """A call nobody knows the outcome of: when it had ended at the latest, or that it may still run."""

    ended_at: float  # by the wall clock, as the journal's rows are dated
    left_running: bool = False

    @classmethod
    def of(cls, row: EffectRecord, call: PlannedCall, now: float) -> UncertainCall:
        """As the journal holds it. FIRING was written just before the call, by a process that is dead by now; so where
        the time that the call may have taken, and its request after that, is not over for sure, it is over from now on.
        Unknown was written once it had ended.
        """
        if row.state is not LocalState.FIRING:
            return cls(row.updated_at, (row.error or "").startswith(LEFT_RUNNING))
        latest = row.updated_at + call.manifest.timeout_seconds
        return cls(latest if now >= latest + call.manifest.timeout_seconds else now)


@dataclass(frozen=True, slots=True)
class ProbeFinding:
    """What a probe has found out: fired, failed, or unknown still. `again_at`: from when its "no" would count."""

    outcome: Outcome
    why: str
    result: bytes | None = None
    conclusive_at: float | None = None


def find_probe(engine: Engine, call: PlannedCall) -> Probe | None:
    """The probe that the reviewed manifest names, if its module was imported here."""
    name = call.manifest.probe
    return None if name is None else engine.registry.probe(name)


async def run_probe(
    engine: Engine, call: PlannedCall, doubt: UncertainCall, attempt_id: str
) -> ProbeFinding | None:
    """Ask the probe of a call; None where it has none."""
    asked = find_probe(engine, call)
    if asked is None:
        return None
    at = engine.clock.wall()  # before it is asked: its answer is no older
    found = _interpret(call, asked, await _call_probe(engine, call, asked, attempt_id), doubt, at)
    log.info("effect %s of %s: %s", call.effect.effect_id[:12], call.tool.name, found.why)
    return found


async def run_probe_after_call(
    engine: Engine, call: PlannedCall, doubt: UncertainCall, attempt_id: str
) -> ProbeFinding | None:
    """The same in the process whose call it was, just now: where the timeout is short, it waits that long for a "no"
    to count.
    """
    found = await run_probe(engine, call, doubt, attempt_id)
    if found is None or found.conclusive_at is None or call.manifest.timeout_seconds > _MAX_LOCAL_WAIT:
        return found
    await engine.waits.sleep(call.manifest.timeout_seconds)
    # by the time that was waited, whatever clocks say
    over = UncertainCall(doubt.ended_at - call.manifest.timeout_seconds)
    return await run_probe(engine, call, over, attempt_id)


async def _call_probe(engine: Engine, call: PlannedCall, asked: Probe, attempt_id: str) -> ProbeAnswer:
    effect = call.effect
    about = FiringEffect(
        effect.effect_id,
        effect.call_key,
        effect.txn,
        effect.tool,
        attempt_id,
        engine.journal.transactions.require(effect.txn).run_key,
        engine.ledger,
        is_probe=True,
    )
    traced = tracing.span("countersign probe", effect_id=effect.effect_id, tool=effect.tool)
    try:
        with bind_effect(about), traced:
            answer = await engine.waits.call(
                asked.fn, _arguments(call, asked), float(call.manifest.timeout_seconds)
            )
    except Exception as error:  # noqa: BLE001 - a probe may raise anything, and none of it says what happened
        text = "" if call.has_secrets else text_of(error)
        return Unsure(f"it raised {type(error).__name__}{text and ': '}{text}")
    if (work := unfinished_error(answer)) is not None:
        return Unsure(text_of(work))
    if isinstance(answer, Unsure) and call.has_secrets:
        return Unsure()
    if isinstance(answer, Happened | DidNotHappen | Unsure):
        return answer
    return Unsure(
        f"it answered a {type(answer).__name__}, which is neither Happened, DidNotHappen nor Unsure"
    )


def _arguments(call: PlannedCall, asked: Probe) -> dict[str, Any]:
    """What it names of the approved arguments, typed as it says; what the call leaves out it has a default for.

    Raises:
        NotStageable: it names what the tool does not take, or as another type.
    """
    if strange := asked.strange(call.tool.signature):
        raise NotStageable(
            f"{asked.name!r} takes {strange[0]!r}, which {call.tool.name!r} does not hand over"
        )
    given = call.effect.args
    return asked.signature.typed({name: given[name] for name in asked.signature.names if name in given})


def _interpret(
    call: PlannedCall, asked: Probe, answer: ProbeAnswer, doubt: UncertainCall, at: float
) -> ProbeFinding:
    says = f"its probe {asked.name}"
    if isinstance(answer, Happened):
        return _fired_finding(call, says, answer)
    if isinstance(answer, Unsure):
        return ProbeFinding(
            Outcome.UNKNOWN, f"{says} cannot tell ({_unsure_reason(answer) or 'it does not say why'})"
        )
    if doubt.left_running:
        return ProbeFinding(
            Outcome.UNKNOWN, f"{says} has not found it, which does not count: the call was left running"
        )
    counts_from = doubt.ended_at + call.manifest.timeout_seconds
    if answer.final is True or at >= counts_from:
        return ProbeFinding(Outcome.FAILED, f"{says} says that it did not happen")
    when = datetime.fromtimestamp(counts_from, UTC).isoformat(timespec="seconds")
    return ProbeFinding(
        Outcome.UNKNOWN, f"{says} has not found it, which counts from {when} on", conclusive_at=counts_from
    )


def _unsure_reason(answer: Unsure) -> str:
    why: object = answer.why  # a probe may put anything there
    return storable(why) if isinstance(why, str) else f"a {type(why).__name__}"


def _fired_finding(call: PlannedCall, says: str, answer: Happened) -> ProbeFinding:
    """That it happened is believed with the result it would have had, or with none."""
    raw = None
    if answer.result is not None:
        raw = call.tool.signature.result.dump(answer.result)
        if raw is None or not call.tool.signature.result.fits(raw):
            told = f"with a {type(answer.result).__name__}, which is no result of {call.tool.name}"
            return ProbeFinding(Outcome.UNKNOWN, f"{says} says that it happened, {told}")
    return ProbeFinding(Outcome.FIRED, f"{says} says that it happened", raw)
