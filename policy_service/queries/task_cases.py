"""A task with everything around it, as a settlement and a page need it: read one by one, or a page at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection

from countersign.contract import EffectState, TaskKind
from policy_service.domain.gates import Gate
from policy_service.errors import NotFoundError
from policy_service.queries import records
from policy_service.queries.effects import gates_of
from policy_service.queries.records import Snapshot
from policy_service.storage.core import find_one
from policy_service.storage.tables import AgentRow, EffectRow, TaskRow


@dataclass(frozen=True)
class TaskCase:
    """A task, the transaction at its revision, the effect it is about, and whose effect that is."""

    task: TaskRow
    snapshot: Snapshot
    effect: EffectRow
    agent: AgentRow

    @property
    def kind(self) -> TaskKind:
        """What is to be settled."""
        return TaskKind(self.task.kind)

    @property
    def state(self) -> EffectState:
        """Where the effect stands."""
        return EffectState(self.effect.state)

    @property
    def forward(self) -> EffectRow:
        """The effect itself, or for a compensation what it was to take back."""
        return self.snapshot.find(self.effect.compensates or "") or self.effect

    @property
    def gates(self) -> tuple[Gate, ...]:
        """Every gate that ever fired on the effect; a compensation has those of what it takes back."""
        return gates_of(self.effect) or gates_of(self.forward)


def read_task(conn: Connection, task_id: str) -> TaskCase:
    """One task.

    Raises:
        NotFoundError: there is no such task, or its effect or agent is gone.
    """
    task = find_one(conn, TaskRow, task_id=task_id)
    if task is None:
        raise NotFoundError(f"there is no task {task_id!r}")
    snapshot = records.require(conn, task.txn, task.rev)
    case = _case(task, snapshot, records.agent_of(conn, snapshot.transaction.agent))
    if case is None:
        raise NotFoundError(f"the effect of task {task_id!r} is gone")
    return case


def read_tasks(conn: Connection, tasks: Sequence[TaskRow]) -> list[TaskCase]:
    """These tasks, by as many queries as one takes; one whose effect is gone is left out."""
    snapshots = records.load_all(conn, [(task.txn, task.rev) for task in tasks])
    agents = records.agents_of(conn, [snapshot.transaction.agent for snapshot in snapshots.values()])
    found = []
    for task in tasks:
        snapshot = snapshots.get((task.txn, task.rev))
        case = snapshot and _case(task, snapshot, agents.get(snapshot.transaction.agent))
        found += [case] if case else []
    return found


def _case(task: TaskRow, snapshot: Snapshot, agent: AgentRow | None) -> TaskCase | None:
    effect = snapshot.find(task.effect_id)
    return None if effect is None or agent is None else TaskCase(task, snapshot, effect, agent)


def said_of(case: TaskCase) -> dict[str, Any] | None:
    """What a person said of this task; None while nobody has, and where it settled itself."""
    task_id = case.task.task_id
    return next((said for said in case.effect.settlements if said["task_id"] == task_id), None)
