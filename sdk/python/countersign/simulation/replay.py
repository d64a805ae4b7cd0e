"""`replay(key, fn)`: run a step again and compare it with its recording, without side effects.

`verify` runs live calls again, and undoes them; `reconstruct` runs no tool at all. In both a staged call returns its
recorded result, typed as the tool declares, and the calls are compared with the recorded ones. Nothing is fired or
submitted: there is no service (offline.py). The recording is never changed.

Results of live calls are compared with the recorded ones (replay_report.py), and a reconstruction returns the recorded
ones; `live` can replace them.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal, overload

from countersign.adapters.protocol import LiveCall
from countersign.commit.review import CommitOptions
from countersign.concurrency import run_sync
from countersign.contract.wire import Claimed
from countersign.errors import MisuseError
from countersign.journal import Journal
from countersign.journal.location import JournalLocation
from countersign.journal.records import LIVE_LANE, STAGED_LANE
from countersign.live.calls import LiveCallRequest
from countersign.process_runtime import default_runtime
from countersign.runtime import Engine, Runtime
from countersign.settings import journal_key_path_from_env
from countersign.simulation.dry_run_report import DryRun
from countersign.simulation.offline import OfflineHost, SimulatedStep, Simulation
from countersign.simulation.recording import RecordedRun, from_export, from_journal
from countersign.simulation.replay_report import (
    Divergence,
    LiveResults,
    NotRecorded,
    ReplayCall,
    ReplayedCall,
    ReplayResult,
    ReturnedResult,
    compare_calls,
    require_mode,
)
from countersign.tools.context import require_not_importing
from countersign.tools.definition import Tool
from countersign.tools.registry import ToolRegistry, default_registry
from countersign.tools.results import settle
from countersign.transactions.rerun import require_step
from countersign.transactions.transaction import Transaction

Mode = Literal["verify", "reconstruct"]
Body = Callable[[Transaction], Any]
NOT_RECORDED: Final = "not recorded"
"""The outcome of a placeholder whose call was not recorded, or whose result an export hides."""
_INSTEAD: Final = (
    "mode 'verify' (`--mode verify`) runs it again; in Python you can replace it: "
    "replay(..., live={{{!r}: ...}})"
)
_NOT_VOUCHED_FOR: Final = (
    "the export of {key!r} has no digest, so it cannot be verified: an edited one replays too"
)


@overload
def replay(
    key: str,
    fn: Callable[[Transaction], Coroutine[Any, Any, Any]],
    *,
    mode: Mode = "verify",
    export: Path | Mapping[str, Any] | None = None,
    live: Mapping[str, Callable[..., Any]] | None = None,
    journal: JournalLocation | None = None,
    runtime: Runtime | None = None,
) -> Coroutine[Any, Any, ReplayResult]: ...
@overload
def replay(
    key: str,
    fn: Body,
    *,
    mode: Mode = "verify",
    export: Path | Mapping[str, Any] | None = None,
    live: Mapping[str, Callable[..., Any]] | None = None,
    journal: JournalLocation | None = None,
    runtime: Runtime | None = None,
) -> ReplayResult: ...
def replay(
    key: str,
    fn: Body,
    *,
    mode: Mode = "verify",
    export: Path | Mapping[str, Any] | None = None,
    live: Mapping[str, Callable[..., Any]] | None = None,
    journal: JournalLocation | None = None,
    runtime: Runtime | None = None,
) -> ReplayResult | Coroutine[Any, Any, ReplayResult]:
    """Run `fn(txn)` again, compare it with the recording under that run key (or transaction id), and return a
    `ReplayResult`; an async `fn` gives a coroutine.

    The recording is this agent's journal, another journal (`journal`), or a document that `countersign journal
    export` wrote (`export`). `live`: in a reconstruction, functions by tool that replace the recorded result of a
    live call.

    Raises:
        MisuseError: there is no such recording, or nothing in it to replay; `fn` is no step.
        JournalError: the recording was changed outside the SDK, or the export was edited.
        NotRecorded: a reconstruction needs the result of a live call that was not recorded.
    """
    require_not_importing()
    require_mode(mode)
    require_step(fn, "replay", "replay(key, step) without calling step")
    if runtime is None and export is None and journal is None:
        runtime = default_runtime()
    registry = default_registry if runtime is None else runtime.registry
    recorded = _recorded(key, export, journal, runtime)
    again = _Replay(recorded, registry, mode, live or {}, runtime)
    return again.run_async(fn) if inspect.iscoroutinefunction(fn) else again.run(fn)


def _recorded(
    key: str, export: Path | Mapping[str, Any] | None, place: JournalLocation | None, runtime: Runtime | None
) -> RecordedRun:
    if export is not None:
        return from_export(export, key)
    if place is not None:
        keys = journal_key_path_from_env() if runtime is None else runtime.settings.journal_key_path
        opened = Journal(place, key_path=keys)
        try:
            return from_journal(opened, key, place)
        finally:
            opened.close()
    chosen = runtime or default_runtime()
    return from_journal(chosen.journal, key, chosen.settings.journal_path)


class ReplayStep(SimulatedStep):
    """A step whose staged calls return recorded results."""

    again: _Replay  # set by the simulation that opened it

    async def require_released(self, engine: Engine, call: LiveCallRequest, claimed: Claimed | None) -> None:
        """A replay evaluates no policy: live calls are undone, and were evaluated when they were recorded."""

    def _run_live(self, tool: Tool, call: LiveCall) -> Any:
        """Run it, to be undone; or return the recorded result."""
        return (
            super()._run_live(tool, call)
            if self.again.mode == "verify"
            else self.again.live_answer(tool, call)
        )

    def returned(self) -> Iterator[ReturnedResult]:
        """The results of its live calls, in order."""
        kept = self._list.returned
        return (ReturnedResult(row.call_key, kept.get(row.effect_id)) for row in self.ran)

    async def commit(self, engine: Engine, terms: CommitOptions) -> None:
        """Undo the live work, and set every placeholder to its recorded outcome.

        Raises:
            SavepointLost: a block could not be rolled back alone; a real run refuses then too.
        """
        try:
            if self._live is not None:
                self._live.end_block()
                self._live.require_whole()
        finally:
            self.abort("a replay")
        outcomes = self.again.outcomes_by_id
        for effect_id, placeholder in self._list.placeholders.items():
            known = outcomes.get(effect_id)
            if known is None or not known.is_known:
                settle(placeholder, NOT_RECORDED)
            else:
                settle(placeholder, known.outcome, known.result, known.error)


class _ReplaySimulation(Simulation[ReplayStep]):
    def __init__(self, again: _Replay) -> None:
        super().__init__(ReplayStep)
        self._again = again

    @property
    def result(self) -> DryRun:
        raise MisuseError("a replay is no dry run; replay(...) answers what it found")

    async def open(
        self, engine: Engine, *, txn: str, run_key: str, independent: bool, patient: bool = True
    ) -> ReplayStep:
        step = await super().open(engine, txn=txn, run_key=run_key, independent=independent, patient=patient)
        step.again = self._again
        return step


@dataclass(slots=True)
class _BodyResult:
    """How the body ended."""

    value: Any = None
    raised: Exception | None = None


class _Replay:
    """One replay."""

    def __init__(
        self,
        recorded: RecordedRun,
        registry: ToolRegistry,
        mode: Mode,
        live: Mapping[str, Callable[..., Any]],
        runtime: Runtime | None,
    ) -> None:
        self.mode = mode
        self._recorded = recorded
        self._stand_ins = live
        self._rehearsal = _ReplaySimulation(self)
        self._alone = OfflineHost(recorded.agent, registry, self._rehearsal.journal, runtime)
        self._outcomes = tuple(ReplayedCall.of(call, registry) for call in recorded.calls())
        self._unchecked = [] if recorded.vouched_for else [_NOT_VOUCHED_FOR.format(key=recorded.key)]
        self.outcomes_by_id = {one.effect_id: one for one in self._outcomes}

    def run(self, fn: Body) -> ReplayResult:
        ran, txn = _BodyResult(), self._transaction()
        with txn, _capture_error(ran):
            ran.value = run_sync(self._alone.sync_executor().call(functools.partial(fn, txn), {}, None))
        return self._result(ran)

    async def run_async(self, fn: Body) -> ReplayResult:
        ran, txn = _BodyResult(), self._transaction()
        async with txn:
            with _capture_error(ran):
                ran.value = await fn(txn)
        return self._result(ran)

    def live_answer(self, tool: Tool, call: LiveCall) -> Any:
        """The result that a reconstruction returns for a live call."""
        stand_in = self._stand_ins.get(tool.name)
        if stand_in is not None:
            return stand_in(**call.args)
        known = self.outcomes_by_id.get(call.effect_id)
        if known is not None and known.recorded is not None and known.is_known:
            if (kind := tool.signature.result.text_like_types) is not None:
                raise NotRecorded(
                    f"{tool.name} returns text or a {kind}, and the record has JSON, where a {kind} is text too: "
                    f"which it was is not known; {_INSTEAD.format(tool.name)}"
                )
            return known.result
        if tool.signature.answers_nothing:
            return None
        raise NotRecorded(
            f"what {tool.name} returned is not recorded: the call was not recorded, or its result was too "
            f"large, is no JSON, is hidden in an export, or was dropped by an older SDK; {_INSTEAD.format(tool.name)}"
        )

    def _transaction(self) -> Transaction:
        return Transaction(
            self._alone,
            self._recorded.key,
            CommitOptions(),
            independent=self._recorded.independent,
            rehearsal=self._rehearsal,
        )

    def _result(self, ran: _BodyResult) -> ReplayResult:
        divergences = tuple(self._divergences(ran))
        return ReplayResult(
            key=self._recorded.key,
            mode=self.mode,
            outcomes=self._outcomes,
            divergences=divergences,
            value=ran.value,
            unchecked=tuple(self._unchecked),
        )

    def _divergences(self, ran: _BodyResult) -> Iterator[Divergence]:
        staged = [
            ReplayCall(call.tool.name, call.call_key, call.args, call.secret or call.tool.secret)
            for step in self._rehearsal.steps
            for call in step.calls
        ]
        live = [
            ReplayCall(row.tool, row.call_key, row.args, row.secret or ())
            for step in self._rehearsal.steps
            for row in step.ran
        ]
        recorded = self._recorded.lane(STAGED_LANE)
        if self._recorded.independent:  # they were recorded without an order: use the current one
            order = {one.call_key: position for position, one in enumerate(staged)}
            recorded.sort(key=lambda one: order.get(one.call_key, len(order)))
        yield from compare_calls(STAGED_LANE, recorded, staged)
        yield from compare_calls(LIVE_LANE, self._recorded.lane(LIVE_LANE), live)
        hides = any(one.secrets for one in [*staged, *live]) or self._recorded.hides
        if self.mode == "verify":
            results = LiveResults(self._alone.registry, hides=hides)
            yield from results.differing(self._recorded.lane(LIVE_LANE), self._returned())
            self._unchecked += results.unchecked
        yield from (one.misfit for one in self._outcomes if one.misfit is not None)
        if ran.raised is not None:
            name, text = type(ran.raised).__name__, f" ({ran.raised})"
            if hides:
                text = ""  # it may quote an argument
            message = f"the step raised {name}{text}, and did not when it was recorded"
            yield Divergence("raised", STAGED_LANE, len(staged), name, None, None, message)

    def _returned(self) -> Iterator[ReturnedResult]:
        for step in self._rehearsal.steps:
            yield from step.returned()


@contextmanager
def _capture_error(ran: _BodyResult) -> Iterator[None]:
    """Report an exception of the step as a divergence, so that its block ends normally."""
    try:
        yield
    except NotRecorded:
        raise
    except Exception as error:  # noqa: BLE001 - any exception of the step is reported as a divergence
        ran.raised = error
