"""Steps as data: a list or a graph, validated completely before its first step.

A step names a tool and its arguments. Steps run in order, those of an inner list concurrently. If a step has `after`,
the graph gives the order, in levels: a step belongs to the level after the last step it names, steps of a level run
concurrently, and the next level begins when all of them have ended. A step may `take` arguments from the result of an
earlier *live* step. A staged step has no result before the whole plan is approved, so a plan that needs one is two
transactions. Equal staged steps would be one call, so the later one sets `repeat` or is refused.
"""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Collection, Mapping, Sequence
from contextlib import nullcontext, suppress
from graphlib import CycleError, TopologicalSorter
from typing import Any, Final

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic_core import ErrorDetails

from countersign.contract.admission import JSON, admit, load
from countersign.contract.errors import ContractError
from countersign.contract.pointers import resolve_pointer
from countersign.errors import MisuseError, NotStageable
from countersign.tools.definition import Tool
from countersign.tools.registry import ToolRegistry
from countersign.tools.results import Placeholder
from countersign.transactions.intake import MAX_EFFECTS
from countersign.transactions.transaction import Transaction

_MAX_STEPS: Final = 1000
_MAX_PROBLEMS: Final = 20  # problems that an error lists


class StepsRefused(MisuseError):
    """Invalid steps; none of them has run. `problems` lists every problem."""

    code = "steps_refused"

    def __init__(self, problems: Sequence[str]) -> None:
        self.problems = tuple(problems)
        super().__init__(f"these steps were not begun: {'; '.join(self.problems)}")


class StepSpec(BaseModel):
    """One step. `take` fills arguments from results: `{"amount_cents": "look:/total"}` is the result of step `look`
    at that JSON pointer (RFC 6901).
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    tool: str
    id: str = Field(default="", pattern=r"\A[A-Za-z0-9_.-]{0,64}\z")
    args: dict[str, Any] = Field(default_factory=dict)
    take: dict[str, str] = Field(default_factory=dict)
    after: tuple[str, ...] = ()
    repeat: bool = Field(default=False, strict=True)  # an equal earlier step is a separate call


_EXAMPLE: Final = '[{"tool": "refund", "args": {"order_id": "o-4"}}]'
Steps = Sequence[Any] | str | bytes


class Schedule:
    """Validated steps in the order in which they run.

    Raises:
        StepsRefused: with every problem found.
    """

    def __init__(self, steps: Steps, registry: ToolRegistry, only: Collection[str] | None = None) -> None:
        listed, self._problems = _read(steps)
        whole = not self._problems
        self._only = only
        self._steps: dict[str, StepSpec] = {}
        self._tools: dict[str, Tool] = {}
        groups = [self._named(entry) for entry in listed]
        for name, step in self._steps.items():
            self._check_tool(name, step, registry)
        self.groups: Final = self._in_order(groups) if whole else ()
        self._check_takes()
        self._check_repeats()
        self._check_together()
        if self._problems:
            raise StepsRefused(self._problems[:_MAX_PROBLEMS])

    @property
    def is_async(self) -> bool:
        """Whether one of the tools is async."""
        return any(tool.is_async for tool in self._tools.values())

    def require_plain(self) -> None:
        """Refuse async tools.

        Raises:
            StepsRefused: naming each step with an async tool.
        """
        awaited = [
            f"step {name!r}: {tool.name!r} is async; write await run_steps_async(...)"
            for name, tool in self._tools.items()
            if tool.is_async
        ]
        if awaited:
            raise StepsRefused(awaited[:_MAX_PROBLEMS])

    def run(self, txn: Transaction) -> dict[str, Any]:
        """Call everything in order; returns the answers by step id."""
        answers: dict[str, Any] = {}
        self._require_stageable(txn)
        for group in self.groups:
            with self._together(txn, group):
                for name in group:
                    answers[name] = self._call(txn, name, answers)
        return answers

    async def run_async(self, txn: Transaction) -> dict[str, Any]:
        """`run` in an event loop."""
        answers: dict[str, Any] = {}
        self._require_stageable(txn)
        for group in self.groups:
            with self._together(txn, group):
                for name in group:
                    answer = self._call(txn, name, answers)
                    answers[name] = await answer if inspect.isawaitable(answer) else answer
        return answers

    def _require_stageable(self, txn: Transaction) -> None:
        """Find problems of manifests and compensations before a live step runs."""
        for tool in self._tools.values():
            if tool.lane == "staged":
                txn.require_stageable(tool)

    def _together(self, txn: Transaction, group: Sequence[str]) -> Any:
        return txn.parallel() if len(group) > 1 else nullcontext()

    def _call(self, txn: Transaction, name: str, answers: Mapping[str, Any]) -> Any:
        """A taken argument is known only now, so the call may turn out to equal another one."""
        with txn.repeat() if self._steps[name].repeat else nullcontext():
            answer = txn.accept(self._tools[name], (), self._args(name, answers))
        for other, known in answers.items():
            if isinstance(answer, Placeholder) and known is answer:
                raise NotStageable(_equal(name, other))
        return answer

    def _args(self, name: str, answers: Mapping[str, Any]) -> dict[str, Any]:
        step = self._steps[name]
        return step.args | {arg: self._taken(source, answers) for arg, source in step.take.items()}

    def _taken(self, source: str, answers: Mapping[str, Any]) -> JSON:
        giver, _, pointer = source.partition(":")
        raw = self._tools[giver].signature.result.dump(answers[giver])
        if raw is None:
            raise NotStageable(f"what {giver!r} answered cannot be written as JSON, so no step can take it")
        try:
            return resolve_pointer(load(raw), pointer)
        except ContractError as error:
            raise NotStageable(f"there is no {source!r}: {error}") from error

    # ------------------------------------------------------------------------------------------------ checks

    def _named(self, entry: list[tuple[int, StepSpec]]) -> list[str]:
        """The names of an entry; a step without an id is named by its position."""
        names = []
        for place, step in entry:
            name = step.id or str(place)
            if name in self._steps:
                self._problems.append(f"two steps are called {name!r}")
            self._steps[name] = step
            names.append(name)
        return names

    def _in_order(self, groups: list[list[str]]) -> tuple[tuple[str, ...], ...]:
        graph = {name: step.after for name, step in self._steps.items()}
        if not any(graph.values()):
            return tuple(tuple(group) for group in groups)
        if any(len(group) > 1 for group in groups):
            self._problems.append(
                "inner lists and `after` are two ways to say one thing; keep to one of them"
            )
        unknown = sorted({other for after in graph.values() for other in after} - graph.keys())
        if unknown:
            self._problems.append(f"`after` names {', '.join(map(repr, unknown))}, which is no step")
            return ()
        sorter = TopologicalSorter(graph)
        try:
            sorter.prepare()
        except CycleError as error:
            self._problems.append(f"steps wait for each other: {' -> '.join(error.args[1])}")
            return ()
        levels = list[tuple[str, ...]]()
        while sorter.is_active():
            level = sorted(sorter.get_ready(), key=[*graph].index)
            sorter.done(*level)
            alone = [name for name in level if self._fires_alone(name)]
            levels.append(tuple(name for name in level if name not in alone))
            levels.extend((name,) for name in alone)
        return tuple(filter(None, levels))

    def _fires_alone(self, name: str) -> bool:
        tool = self._tools.get(name)
        return tool is not None and tool.lane == "staged" and not (tool.own_thread or tool.is_async)

    def _check_tool(self, name: str, step: StepSpec, registry: ToolRegistry) -> None:
        found = registry.get(step.tool)
        if found is not None and self._only is not None and step.tool not in self._only:
            self._problems.append(f"step {name!r}: {step.tool!r} is not among the tools it may name")
            return
        if found is None:
            self._problems.append(
                f"step {name!r}: no tool {step.tool!r} is registered; import the module that defines it"
            )
            return
        self._tools[name] = found
        twice = sorted(step.args.keys() & step.take.keys())
        if twice:
            self._problems.append(f"step {name!r} gives and takes {', '.join(twice)}; keep one")
        try:
            found.signature.require_call(step.args, step.take)
            if not step.take:
                found.signature.freeze((), step.args)
        except NotStageable as error:
            self._problems.append(f"step {name!r}: {error}")

    def _check_repeats(self) -> None:
        first: dict[tuple[str, bytes], str] = {}
        for name in itertools.chain.from_iterable(self.groups):
            step, tool = self._steps[name], self._tools.get(name)
            if tool is not None and tool.lane == "live" and step.repeat:
                self._problems.append(
                    f"step {name!r}: {tool.name!r} is live and runs each time; leave `repeat` out"
                )
            elif tool is not None and tool.lane == "staged" and not (tool.repeat or step.take):
                with suppress(NotStageable):  # reported above
                    other = first.setdefault((tool.name, tool.signature.freeze((), step.args)), name)
                    if other != name and not step.repeat:
                        self._problems.append(_equal(name, other))

    def _check_together(self) -> None:
        """Check the number of staged calls and who may fire concurrently, before the first step."""
        staged = sum(tool.lane == "staged" for tool in self._tools.values())
        if staged > MAX_EFFECTS:
            self._problems.append(
                f"{staged} of them are staged, and a transaction holds at most {MAX_EFFECTS}; make several of them"
            )
        for name in itertools.chain.from_iterable(group for group in self.groups if len(group) > 1):
            if self._fires_alone(name):
                self._problems.append(
                    f"step {name!r}: {self._tools[name].name!r} is bound to one thread (own_thread=False), so "
                    "nothing "
                    "fires at the same time; take it out of the inner list"
                )

    def _check_takes(self) -> None:
        before: set[str] = set()
        for group in self.groups:
            for name in group:
                for source in self._steps[name].take.values():
                    self._check_take(name, source, before)
            before.update(group)

    def _check_take(self, name: str, source: str, before: set[str]) -> None:
        giver, colon, pointer = source.partition(":")
        if not colon or not (pointer == "" or pointer.startswith("/")):
            self._problems.append(
                f"step {name!r} takes {source!r}; write the step, a colon and a JSON pointer, like 'look:/total'"
            )
        elif pointer == "/":
            self._problems.append(
                f"step {name!r} takes {source!r}, a member without a name; all that {giver!r} answered is '{giver}:'"
            )
        elif giver not in before:
            self._problems.append(f"step {name!r} takes from {giver!r}, which does not run before it")
        elif giver in self._tools and self._tools[giver].lane != "live":
            self._problems.append(
                f"step {name!r} takes from {giver!r}, which is staged and has no result before the whole is "
                "approved; "
                "make two transactions of it"
            )


def _equal(name: str, other: str) -> str:
    return (
        f"step {name!r} asks for the same as step {other!r}, and equal calls of one transaction are one; where both "
        f'are meant, write "repeat": true in step {name!r}'
    )


def _read(steps: Steps) -> tuple[list[list[tuple[int, StepSpec]]], list[str]]:
    """Parse the steps: entries with positions counted from 1, and the problems found. A model may have written them."""
    try:
        raw = steps.encode() if isinstance(steps, str) else steps
        value: JSON = load(raw) if isinstance(raw, bytes) else admit([*raw])
    except (ContractError, UnicodeEncodeError, TypeError) as error:
        raise StepsRefused([f"they are no JSON: {error}"]) from error
    if not isinstance(value, list):
        raise StepsRefused([f"they are no list; write {_EXAMPLE}"])
    entries = [one if isinstance(one, list) else [one] for one in value]
    number = sum(map(len, entries))
    if not 0 < number <= _MAX_STEPS:
        raise StepsRefused([f"there are {number}; between 1 and {_MAX_STEPS} can run"])
    places, problems = itertools.count(1), list[str]()
    listed = [
        [(place, step) for one in entry if (step := _parse_step(place := next(places), one, problems))]
        for entry in entries
    ]
    return listed, problems


def _parse_step(place: int, said: JSON, problems: list[str]) -> StepSpec | None:
    try:
        return StepSpec.model_validate(said)
    except ValidationError as error:
        text = "; ".join(_describe_error(one) for one in error.errors(include_input=False, include_url=False))
        problems.append(f"step '{place}' is invalid: {text}; write {_EXAMPLE}")
        return None


_MEMBERS: Final = ", ".join(StepSpec.model_fields)
_WRITE: Final = {
    "tool": "the name of a tool, as text",
    "id": "up to 64 letters, digits, '.', '_' or '-'",
    "args": "an object of arguments by name",
    "take": "an object of texts like 'look:/total', by argument",
    "after": "a list of the ids of steps",
    "repeat": "true or false",
}


def _describe_error(found: ErrorDetails) -> str:
    if not found["loc"]:
        return f"it is no object with members of {_MEMBERS}"
    where = ".".join(map(str, found["loc"]))
    text = {"missing": f"it has no {where!r}", "extra_forbidden": f"it knows no {where!r}, only {_MEMBERS}"}
    return text.get(found["type"]) or f"{where}: write {_WRITE[str(found['loc'][0])]}"
