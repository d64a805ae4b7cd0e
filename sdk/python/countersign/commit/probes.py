"""Probes: determine the outcome of a call in doubt. A probe fires nothing, so it runs before a retry that needs a new
permit, and before giving up.

Rules: a probe runs only for a call that is FIRING or unknown in the journal, with the approved bytes and the call key,
never in a simulation. `Happened` counts at once. `DidNotHappen` describes the moment of the probe, and the request may
still be in flight. It counts once the tool's timeout has passed since the call ended at the latest, or if the probe
says it is final. It never counts for a call that was left running, because its end is unknown. An exception, a late
answer or an invalid answer leaves the outcome unknown.
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
"""The recorded error of a call whose process died before it ended."""

LEFT_RUNNING: Final = "left running"
"""The prefix of the recorded error of a call that was left running: its effect is unknown."""

# seconds: the longest tool timeout after which the probe is repeated here
_MAX_LOCAL_WAIT: Final = 10


@dataclass(frozen=True, slots=True)
class UncertainCall:
    """A call with an unknown outcome: the latest time at which it ended, or that it may still run."""

    ended_at: float  # wall time, like the journal's rows
    left_running: bool = False

    @classmethod
    def of(cls, row: EffectRecord, call: PlannedCall, now: float) -> UncertainCall:
        """From its row in the journal. FIRING was written just before the call, by a process that is dead now. If
        the time the call and its request may take has not passed for sure, it counts from now on. UNKNOWN was
        written after the call ended.
        """
        if row.state is not LocalState.FIRING:
            return cls(row.updated_at, (row.error or "").startswith(LEFT_RUNNING))
        latest = row.updated_at + call.manifest.timeout_seconds
        return cls(latest if now >= latest + call.manifest.timeout_seconds else now)


@dataclass(frozen=True, slots=True)
class ProbeFinding:
    """What a probe found: fired, failed, or still unknown. `conclusive_at`: from when its "no" would count."""

    outcome: Outcome
    why: str
    result: bytes | None = None
    conclusive_at: float | None = None


def find_probe(engine: Engine, call: PlannedCall) -> Probe | None:
    """The probe named by the reviewed manifest, if its module was imported here."""
    name = call.manifest.probe
    return None if name is None else engine.registry.probe(name)


async def run_probe(
    engine: Engine, call: PlannedCall, doubt: UncertainCall, attempt_id: str
) -> ProbeFinding | None:
    """Run the probe of a call. None if it has no probe."""
    asked = find_probe(engine, call)
    if asked is None:
        return None
    at = engine.clock.wall()  # taken before the probe, whose answer is no older
    found = _interpret(call, asked, await _call_probe(engine, call, asked, attempt_id), doubt, at)
    log.info("effect %s of %s: %s", call.effect.effect_id[:12], call.tool.name, found.why)
    return found


async def run_probe_after_call(
    engine: Engine, call: PlannedCall, doubt: UncertainCall, attempt_id: str
) -> ProbeFinding | None:
    """Run the probe in the process that made the call. If the tool's timeout is short, wait that long once, so that
    a "no" counts.
    """
    found = await run_probe(engine, call, doubt, attempt_id)
    if found is None or found.conclusive_at is None or call.manifest.timeout_seconds > _MAX_LOCAL_WAIT:
        return found
    await engine.executor.sleep(call.manifest.timeout_seconds)
    # by the time waited, independent of clocks
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
            answer = await engine.executor.call(
                asked.fn, _arguments(call, asked), float(call.manifest.timeout_seconds)
            )
    except Exception as error:  # noqa: BLE001 - a probe may raise anything, which says nothing about the call
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
    """The approved arguments that the probe names, in its types. An argument missing from the call has a default.

    Raises:
        NotStageable: the probe names an argument the tool does not have, or with another type.
    """
    if strange := asked.strange(call.tool.signature):
        raise NotStageable(f"{asked.name!r} takes {strange[0]!r}, which {call.tool.name!r} does not have")
    given = call.effect.args
    return asked.signature.typed({name: given[name] for name in asked.signature.names if name in given})


def _interpret(
    call: PlannedCall, asked: Probe, answer: ProbeAnswer, doubt: UncertainCall, at: float
) -> ProbeFinding:
    prefix = f"its probe {asked.name}"
    if isinstance(answer, Happened):
        return _fired_finding(call, prefix, answer)
    if isinstance(answer, Unsure):
        return ProbeFinding(
            Outcome.UNKNOWN, f"{prefix} cannot tell ({_unsure_reason(answer) or 'it does not say why'})"
        )
    if doubt.left_running:
        return ProbeFinding(
            Outcome.UNKNOWN, f"{prefix} has not found it, which does not count: the call was left running"
        )
    counts_from = doubt.ended_at + call.manifest.timeout_seconds
    if answer.final is True or at >= counts_from:
        return ProbeFinding(Outcome.FAILED, f"{prefix} says that it did not happen")
    when = datetime.fromtimestamp(counts_from, UTC).isoformat(timespec="seconds")
    return ProbeFinding(
        Outcome.UNKNOWN, f"{prefix} has not found it, which counts from {when} on", conclusive_at=counts_from
    )


def _unsure_reason(answer: Unsure) -> str:
    why: object = answer.why  # a probe may pass any object
    return storable(why) if isinstance(why, str) else f"a {type(why).__name__}"


def _fired_finding(call: PlannedCall, prefix: str, answer: Happened) -> ProbeFinding:
    """A report that the call happened is accepted with a result of the tool's type, or with none."""
    raw = None
    if answer.result is not None:
        raw = call.tool.signature.result.dump(answer.result)
        if raw is None or not call.tool.signature.result.fits(raw):
            message = f"with a {type(answer.result).__name__}, which is no result of {call.tool.name}"
            return ProbeFinding(Outcome.UNKNOWN, f"{prefix} says that it happened, {message}")
    return ProbeFinding(Outcome.FIRED, f"{prefix} says that it happened", raw)
