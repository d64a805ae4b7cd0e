"""Which product files run during one effect's life: submit, vote, release, redeem, report; and a commit in the SDK.

The files are those in which a function is called; what only its import runs does not count. `docs/explanation/
architecture.md` lists them, and `test_audit_set.py` compares.
"""

from __future__ import annotations

import ast
import asyncio
import io
import re
import sys
import threading
import tokenize
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from types import FrameType
from typing import Any, cast

import httpx2

from countersign import ReviewPending
from tests.conventions.repository import ROOT
from tests.fakes.desk import Desk, make_desk, refund_tool
from tests.fakes.payments import Payments
from tests.fakes.world import Agent, Visitor, World, running
from tests.integration.service.effects import pay

# What looks after the service whenever its time comes, also while a step runs: of no step.
BACKGROUND = {f"policy_service/jobs/{name}.py" for name in ("scheduler", "delivery", "health_monitor")}
SERVICE, SDK = ROOT / "policy_service", ROOT / "sdk/python/countersign"


@dataclass
class Trace:
    """The files that functions were called in, and how often a call went from one of them into another."""

    roots: tuple[Path, ...]
    steps: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    hops: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    _step: str | None = None
    _names: dict[str, str | None] = field(default_factory=dict)

    @property
    def files(self) -> set[str]:
        """Every file of every step, as a path below the repository."""
        return set().union(*self.steps.values())

    @contextmanager
    def step(self, name: str | None) -> Iterator[None]:
        """What runs here belongs to this step; to none without a name."""
        before, self._step = self._step, name
        try:
            yield
        finally:
            self._step = before

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Watch this thread, and those started meanwhile."""
        threading.setprofile(self._called)
        sys.setprofile(self._called)
        try:
            yield
        finally:
            sys.setprofile(None)
            threading.setprofile(None)  # type: ignore[arg-type]

    def _called(self, frame: FrameType, event: str, _: Any) -> None:
        step = self._step
        if step is None or event != "call" or frame.f_code.co_name == "<module>":
            return
        name = self._name(frame)
        if name is None:
            return
        self.steps[step].add(name)
        if frame.f_back is not None and self._name(frame.f_back) not in {None, name}:
            self.hops[step] += 1

    def _name(self, frame: FrameType) -> str | None:
        path = frame.f_code.co_filename
        if path not in self._names:
            found = any(Path(path).is_relative_to(root) for root in self.roots)
            self._names[path] = str(Path(path).relative_to(ROOT)) if found else None
        return self._names[path]


async def trace_service(folder: Path) -> Trace:
    """One payment that a person approves, in the real service."""
    trace = Trace((SERVICE, SDK / "contract"))
    bundle = Payments(folder / "bundle")
    with trace.watching():
        async with running(folder / "data", bundle.path) as world:
            world.service.scheduler._scheduler.pause()  # what its jobs run is of no step
            robot, maya = await world.agent("robot"), await world.person("maya")
            await _life(world, robot, maya, trace)
            with trace.step("log"):  # in the background otherwise, whenever it comes to it
                await world.service.sequencer.number()
                await world.service.feed.refresh()
                world.service.mark.reached(world.service.feed.index + 1)
                await world.service.mark.write()
    return trace


async def _life(world: World, robot: Agent, maya: Visitor, trace: Trace) -> None:
    with trace.step("submit"):
        view = (await robot.submit(await pay(world, 500))).json()
    with trace.step("vote"):
        answer = await maya.vote(view, reason="checked with the customer")
    assert answer.json()["state"] == "met", answer.text
    view = await robot.see(view["txn"])
    with trace.step("release"):
        released = await robot.release(view)
    with trace.step("redeem"):
        spent = await robot.redeem(released.json()["releases"], "attempt-1")
    assert spent.status_code == 200, spent.text
    with trace.step("report"):
        effect = {"effect_id": view["effects"][0]["effect_id"], "outcome": "fired", "result": {"id": "p-1"}}
        reported = await robot.report("attempt-1", effect)
    assert reported.status_code == 200, reported.text


def trace_sdk(folder: Path) -> Trace:
    """One refund that a person approves while the agent waits, and another that is released at once."""
    trace = Trace((SDK,))
    folder.mkdir(exist_ok=True)
    desk = make_desk(folder)
    _leave_out_the_service(desk, trace)
    with desk.runtime, trace.watching():
        refund = refund_tool(desk)
        with trace.step("commit"), desk.step("small"):
            refund("o-1", 4_200)
        waiting = None
        try:
            with trace.step("commit"), desk.step("large") as waiting:
                refund("o-2", 90_000)
        except ReviewPending:
            assert waiting is not None
            desk.service.approve(waiting.txn)
        with trace.step("commit"), desk.step("large"):
            refund("o-2", 90_000)
    assert desk.done == [("refund", "o-1", 4_200), ("refund", "o-2", 90_000)]
    return trace


def _leave_out_the_service(desk: Desk, trace: Trace) -> None:
    """The fake service uses the SDK's contract too."""
    answer = desk.face.transport.handler

    def untraced(request: httpx2.Request) -> httpx2.Response:
        with trace.step(None):
            return cast(httpx2.Response, answer(request))

    desk.face.transport.handler = untraced


# ------------------------------------------------------------------------------------------------------ the page

PAGE = ROOT / "docs/explanation/architecture.md"
SERVICE_MARKER, SDK_MARKER = "<!-- files of the service -->\n", "<!-- files of the SDK -->\n"
CONTRACT_MARKER = "<!-- files of the contract that only the service runs -->\n"
END = "<!-- end -->\n"


def service_files(trace: Trace) -> set[str]:
    """Those of the service itself; the contract is the SDK's."""
    return {name for name in trace.files if name.startswith("policy_service/")} - BACKGROUND


def page(service: Trace, sdk: Trace) -> str:
    """The page as it should be: what people wrote, and the two tables."""
    text = _between(PAGE.read_text(), SERVICE_MARKER, service_files(service))
    text = _between(text, CONTRACT_MARKER, service.files - service_files(service) - BACKGROUND - sdk.files)
    return _between(text, SDK_MARKER, sdk.files)


def _between(text: str, marker: str, files: set[str]) -> str:
    before, _, rest = text.partition(marker)
    rows = "".join(f"- `{name}`\n" for name in sorted(files))
    return f"{before}{marker}\n{rows}\n{END}{rest.partition(END)[2]}"


def lines_of_code(name: str) -> int:
    """Without blank lines, comments and docstrings."""
    text = (ROOT / name).read_text()
    tree = ast.parse(text)
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    nodes = [node for node in ast.walk(tree) if isinstance(node, documented)]
    bodies = [node.body[0] for node in nodes if ast.get_docstring(node, clean=False) is not None]
    docstrings = {line for one in bodies for line in range(one.lineno, (one.end_lineno or 0) + 1)}
    left_out = {getattr(tokenize, name) for name in "COMMENT NL NEWLINE INDENT DEDENT ENDMARKER".split()}
    tokens = [one for one in tokenize.generate_tokens(io.StringIO(text).readline) if one.type not in left_out]
    written = {line for one in tokens for line in range(one.start[0], one.end[0] + 1)}
    blank = {number for number, line in enumerate(text.splitlines(), 1) if not line.strip()}
    return len(written - docstrings - blank)


def files_of(text: str, marker: str) -> list[str]:
    """The files that a page lists after a marker."""
    return re.findall(r"(?m)^- `(.+)`$", text.partition(marker)[2].partition(END)[0])


if __name__ == "__main__":  # in a process of its own: what others have cached would not run
    with TemporaryDirectory() as folder:
        traces = asyncio.run(trace_service(Path(folder) / "service")), trace_sdk(Path(folder) / "sdk")
    Path(sys.argv[1] if sys.argv[1:] else PAGE).write_text(page(*traces))
    for trace in traces:
        for step, files in trace.steps.items():
            print(f"{step}: {len(files)} files, {trace.hops[step]} calls from one file into another")
