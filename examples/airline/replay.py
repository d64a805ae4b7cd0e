"""Drive recorded runs through the SDK and the service: every write call is one transaction of its own.

The run key is the run's name and the step, so a recorded call that the agent repeated is an intent of its
own. What is released fires at once and changes the airline's database for the calls after it; what is denied
does not; what is reviewed is put before the simulated people. The labels of the recording are carried to the
report and read by nothing here: neither the service nor the people ever see them.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from countersign import (
    Denied,
    EffectFailed,
    NotStageable,
    PendingReview,
    ReviewPending,
    Runtime,
    transaction,
)
from examples.airline import reads
from examples.airline.data import Call, Run
from examples.airline.database import AirlineDatabase
from examples.airline.tools import WRITES

Decision = Literal["released", "reviewed", "denied"]
People = Callable[[Sequence[PendingReview]], bool]


@dataclass(frozen=True)
class Verdict:
    """What was decided about one recorded write, why, and what became of it."""

    run: str
    call: Call
    decision: Decision
    policies: tuple[str, ...]
    became: str


def no_approvals(_reviews: Sequence[PendingReview]) -> bool:
    """Approve nothing: reviews stay open, and their effects do not fire."""
    return False


def replay(
    runs: Iterable[Run], airline: AirlineDatabase, runtime: Runtime, people: People
) -> Iterator[Verdict]:
    """Every write of every run, in order; the database is put back before each run."""
    for run in runs:
        airline.reset()
        for call in run.calls:
            if call.write:
                yield _write(run, call, runtime, people)
            else:
                reads.read(airline.path, call.tool, call.args)


def _write(run: Run, call: Call, runtime: Runtime, people: People) -> Verdict:
    key = f"{run.name}-step-{call.step}"
    try:
        became = _fire(call, key)
    except NotStageable as misfit:
        return Verdict(run.name, call, "denied", ("sdk",), str(misfit))
    except Denied as denied:
        policies = tuple(dict.fromkeys(reason.policy or reason.code for reason in denied.reasons))
        return Verdict(run.name, call, "denied", policies, "; ".join(r.text for r in denied.reasons))
    except ReviewPending as pending:
        (effect,) = runtime.client().view(pending.txn).effects
        became = _after_people(call, key) if people(pending.reviews) else "left open"
        return Verdict(run.name, call, "reviewed", effect.decision.gates, became)
    return Verdict(run.name, call, "released", (), became)


def _fire(call: Call, key: str) -> str:
    """Stage the call and commit; the same key again finds what people have answered meanwhile."""
    tool = WRITES.get(call.tool)
    if tool is None:
        raise NotStageable(f"the airline has no write tool {call.tool!r}")
    try:
        with transaction(key=key):
            tool(**call.args)
    except EffectFailed as failed:
        return f"the airline refused: {failed}"
    return "fired"


def _after_people(call: Call, key: str) -> str:
    """What became of a question that people have answered."""
    try:
        return _fire(call, key)
    except Denied as denied:
        return f"denied: {denied.reasons[0].text}"
    except ReviewPending:
        return "left open: more people are asked than have answered"
