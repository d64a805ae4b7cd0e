"""One session of a developer: what happens at a save, at a key, when people are asked and when they have answered.

One thing at a time, in the order it came: a save that arrives while the script is being imported waits for that. Rules:
the service stays up whatever the script or the policies do; an error of theirs is shown, and the next save is waited
for; when the session ends, the script ends first, while the service still answers what it compensates. What was
approved is pending until it is spent; what fired beside something that did not is pending until it is compensated, but
not while an outcome is open or its compensation waits for people.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Final

from countersign.contract import EffectState, TaskAnswer, TaskKind, TxnState, Verdict, manifest_file
from policy_service.audit.feed import Event
from policy_service.channels.admin.dev import processes
from policy_service.channels.admin.dev.folder import (
    DevFolder,
    Tools,
    ToolsError,
    merge_manifests,
    read_tools,
    watch_saves,
)
from policy_service.channels.admin.dev.output import (
    KEYS_HELP,
    exit_text,
    print_lines,
    print_manifest_added,
    print_review,
    print_task,
    warn_manifest_not_in_force,
    warn_unknown_tool,
)
from policy_service.domain.settlement import has_missing_effect
from policy_service.identity.dev_signin import create_link
from policy_service.pdp.rules import UNKNOWN_TOOL
from policy_service.queries import repository
from policy_service.queries.context import Context
from policy_service.queries.task_context import TaskContext, read_task_context, settlement_of
from policy_service.queries.task_views import task_url
from policy_service.storage.tables import EffectRow
from policy_service.workflow.effects.activate import activate

_OPEN: Final = frozenset({EffectState.REDEEMED, EffectState.COMPENSATING, EffectState.UNKNOWN})

APPROVED: Final = "approved"
SETTLED: Final = "settled"
WHY_NOT_RERUN: Final[Mapping[str, str]] = MappingProxyType(
    {APPROVED: "another run would ask again", SETTLED: "another run would do it all again"}
)
"""What people have said, and why a step without a key is not run again for it."""

RESUMABLE_ANSWERS: Final = frozenset(
    {TaskAnswer.FIRED, TaskAnswer.NOT_FIRED, TaskAnswer.COMPENSATED, TaskAnswer.LEFT_STANDING}
)
"""The answers that an agent goes on from; the others move nothing, or end the transaction unspent."""


def has_pending_work(snapshot: repository.Snapshot) -> bool:
    """Whether its agent has something to spend or to take back."""
    if snapshot.transaction.state == TxnState.READY.value:
        return True
    if any(undo.state == EffectState.RELEASED.value for undo in snapshot.compensations):
        return True
    parts = snapshot.parts()
    return (
        has_missing_effect(parts)
        and any(
            part.state is EffectState.FIRED and part.can_compensate and not part.left_standing
            for part in parts
        )
        and not any(part.state in _OPEN for part in parts)
    )


Step = Callable[[], Awaitable[None]]
_UNNAMED = "unnamed-"  # how the SDK begins a key that nobody named: another run of the script has another one
_GRACE_S = 3.0  # for a script that still runs to go on by itself with what people have answered
_FEED_WAIT_S = 60.0
_MAX_LISTED = 5  # reviews, and tasks, that are told one by one as a sitting begins


@dataclass(frozen=True, slots=True)
class DevPerson:
    """Who signs in here."""

    sub: str
    name: str


class Session:
    """One sitting."""

    def __init__(
        self,
        ctx: Context,
        folder: DevFolder,
        person: DevPerson,
        arguments: Sequence[str],
        env: Mapping[str, str],
    ) -> None:
        self._ctx, self._folder, self._person, self._env = ctx, folder, person, env
        self._todo: asyncio.Queue[Step] = asyncio.Queue()
        words = (processes.SCRIPT_RUNNER, str(folder.script), *arguments)
        self._script = processes.Script(words, env, self._ended)
        self._tools: Tools | None = None
        self._last_bundle_report: str | None = None
        self._answered: set[str] = set()  # transactions that people have answered about, and that may go on
        self._over = asyncio.Event()

    async def run(self) -> None:
        """Until the person has had enough, or this is cancelled."""
        steps = (self._follow(), self._watch(), self._work(), self._over.wait())
        tasks = [asyncio.create_task(step) for step in steps]
        read_keyboard(self._key)
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await self._script.stop()

    # -- one thing at a time ------------------------------------------------------------------------------------------

    async def _work(self) -> None:
        await self._report_bundle()
        await self._report_open_work()
        await self._load_script()
        while True:
            step = await self._todo.get()
            await step()

    async def _watch(self) -> None:
        async for changed in watch_saves(self._folder.bundle, self._files):
            if any(path.is_relative_to(self._folder.bundle) for path in changed):
                self._todo.put_nowait(self._load_bundle)
            if any(path in self._files() for path in changed):
                self._todo.put_nowait(self._load_script)

    def _files(self) -> tuple[Path, ...]:
        return (self._folder.script, *(self._tools.files if self._tools else ()))

    async def _follow(self) -> None:
        feed = self._ctx.feed
        index = feed.index
        while not feed.closing:
            for event in await feed.wait_after(index, _FEED_WAIT_S):
                index = event.index
                await self._heard(event)

    async def _heard(self, event: Event) -> None:
        if event.kind in {"review_opened", "review_reopened"} and event.review_id:
            await self._report_review(event.review_id)
        elif event.kind == "transaction_ready" and event.txn:
            self._todo.put_nowait(lambda txn=event.txn: self._go_on(txn, APPROVED))  # type: ignore[misc]
        elif event.kind == "effect_released" and event.txn and event.effect_id:
            await self._on_effect_released(event.txn, event.effect_id)
        elif event.kind in {"transaction_settled", "transaction_ended"} and event.txn:
            await self._report_end(event.txn)
        elif event.kind == "effect_compensated" and event.txn and event.effect_id:
            await self._report_compensated(event.txn, event.effect_id)
        elif event.kind == "task_opened" and event.task_id:
            await self._on_task_opened(event.task_id)
        elif event.kind == "task_settled" and event.task_id:
            await self._on_task_settled(event.task_id)

    def _key(self, line: str) -> None:
        steps: dict[str, Step] = {"l": self.print_sign_in_link, "r": self._run_again}
        if line == "q":
            self._over.set()
        elif line in steps:
            self._todo.put_nowait(steps[line])
        else:
            print_lines(KEYS_HELP)

    # -- the script ---------------------------------------------------------------------------------------------------

    async def _load_script(self) -> None:
        """The script was saved: bring its manifests up to it, and run it."""
        await self._script.stop()
        if not self._folder.script.is_file():
            print_lines(f"{self._folder.script.name} is gone; save it again and it runs")
            return
        try:
            self._tools = await read_tools(self._folder.script, self._env)
            said = merge_manifests(self._folder, self._tools)
        except ToolsError as error:
            print_lines(
                f"{self._folder.script.name} was not run:", *str(error).splitlines(), "mend it and save"
            )
            return
        except OSError as error:
            print_lines(f"the manifests cannot be written: {error}")
            return
        print_lines(*said)
        await self._load_bundle()
        await self._script.start()

    async def _run_again(self) -> None:
        if self._tools is None:
            await self._load_script()
            return
        print_lines(f"running {self._folder.script.name} again")
        await self._script.start()

    def _ended(self, status: int) -> None:
        print_lines(exit_text(self._folder.script.name, status))
        if self._answered:
            self._todo.put_nowait(self._finish)

    # -- the policies -------------------------------------------------------------------------------------------------

    async def _load_bundle(self) -> None:
        await activate(self._ctx)
        await self._report_bundle()

    async def _report_bundle(self) -> None:
        """What is in force, or what keeps the folder out; each told once."""
        status, where = self._ctx.active.status(), self._folder.shown(self._folder.bundle)
        now = str(status.error) if status.error is not None else str(status.active_digest)
        before, self._last_bundle_report = self._last_bundle_report, now
        if now == before:
            return
        if status.error is not None:
            problems = [f"    {where}/{line}" for line in now.splitlines()]
            print_lines("policies refused; the last good ones stay in force until this is mended:", *problems)
            return
        again = "reloaded" if before is not None else "in force"
        print_lines(f"policies {again} at digest {now[:12]}: {where}/")
        for warning in self._ctx.active.current.warnings:
            print_lines(f"    warning: {where}/{warning}")

    # -- people -------------------------------------------------------------------------------------------------------

    async def print_sign_in_link(self) -> None:
        """Print a fresh sign-in link."""
        person, settings = self._person, self._ctx.settings
        link = await self._ctx.db.write(lambda tx: create_link(tx, settings, person.sub, person.name))
        print_lines(f"sign in as {person.name}: {link}")

    async def _report_open_work(self) -> None:
        """What an earlier sitting left to people: no event will tell of it again."""
        db, now = self._ctx.db, self._ctx.clock()
        # Those that nobody can answer any more are over, though no job has ended them yet.
        reviews = await db.read(
            lambda conn: repository.list_open_reviews(conn, after=(now, ""), limit=_MAX_LISTED + 1)
        )
        tasks = await db.read(lambda conn: repository.list_tasks(conn, state="open", limit=_MAX_LISTED + 1))
        for review in reviews[:_MAX_LISTED]:
            await self._report_review(review.review_id)
        for task in tasks[:_MAX_LISTED]:
            await self._on_task_opened(task.task_id)
        if max(len(reviews), len(tasks)) > _MAX_LISTED:
            print_lines(f"and more of them wait: {self._ctx.settings.public_url}/queue and /tasks")

    async def _report_review(self, review_id: str) -> None:
        review = await self._ctx.db.read(lambda conn: repository.review_by_id(conn, review_id))
        if review is None:
            return
        snapshot = await self._ctx.db.read(
            lambda conn: repository.require_transaction(conn, review.txn, review.rev)
        )
        effect = snapshot.find(review.effect_id)
        gates = [] if effect is None else effect.gates
        if any(gate["policy_id"] == UNKNOWN_TOOL for gate in gates):
            self._report_unknown_tool(review.tool)
        groups = sorted({group for gate in gates for group in gate["groups"]})
        print_review(review.tool, groups, f"{self._ctx.settings.public_url}/reviews/{review_id}")

    def _report_unknown_tool(self, tool: str) -> None:
        """Why no policy has weighed it: its manifest came later, is kept out with all the others, or is not there."""
        error, bundle = self._ctx.active.status().error, self._folder.bundle
        where = self._folder.shown(bundle)
        if tool in self._ctx.active.current.manifests:
            print_manifest_added(tool)
        elif error is not None and (bundle / "tools" / manifest_file(tool)).is_file():
            warn_manifest_not_in_force(tool, where, str(error).partition("\n")[0])
        else:
            warn_unknown_tool(tool, where)

    async def _tell_task(self, task_id: str) -> None:
        case = await self._task(task_id)
        undoing = case.effect.compensates is not None
        print_task(case.effect.tool, case.kind, task_url(self._ctx, task_id), of_compensation=undoing)

    async def _report_end(self, txn: str) -> None:
        snapshot = await self._snapshot(txn)
        self._answered.discard(txn)
        key = snapshot.transaction.run_key
        states = [f"{one.tool} {one.state}{_denial_reason(snapshot, one)}" for one in snapshot.effects]
        settled = snapshot.transaction.state == TxnState.SETTLED.value
        print_lines(
            f"{key}: {', '.join(states)}" if settled else f"{key}: ended, nothing fired ({', '.join(states)})"
        )

    async def _report_compensated(self, txn: str, effect_id: str) -> None:
        """The end of a transaction may have been told while this still stood."""
        snapshot = await self._snapshot(txn)
        effect = snapshot.find(effect_id)
        if effect is not None:
            print_lines(f"{snapshot.transaction.run_key}: {effect.tool} was taken back")

    # -- after people have answered -----------------------------------------------------------------------------------

    async def _on_effect_released(self, txn: str, effect_id: str) -> None:
        """People have let a compensation go: its transaction is not ready once more for that."""
        effect = (await self._snapshot(txn)).find(effect_id)
        if effect is not None and effect.compensates is not None:
            self._todo.put_nowait(lambda: self._go_on(txn, APPROVED))

    async def _on_task_settled(self, task_id: str) -> None:
        """A task is over: by a person's word the script goes on, for one that settled itself nobody has to."""
        case = await self._task(task_id)
        said = settlement_of(case)
        if said is not None and said["answer"] in RESUMABLE_ANSWERS:
            self._todo.put_nowait(lambda: self._go_on(case.task.txn, SETTLED))

    async def _on_task_opened(self, task_id: str) -> None:
        """Ask the person; but what the script's next run takes back only once that has had its chance."""
        case = await self._task(task_id)
        if case.kind is TaskKind.COMPENSATION_DUE and case.agent.name == self._folder.agent:
            self._after_grace(lambda: self._take_back(task_id))
        else:
            await self._tell_task(task_id)

    async def _take_back(self, task_id: str) -> None:
        """Whoever is asked to take it back while the agent still does would do it a second time."""
        if await self._is_open(task_id):
            await self._resume()
        if await self._is_open(task_id):
            await self._tell_task(task_id)

    async def _is_open(self, task_id: str) -> bool:
        return (await self._task(task_id)).task.state == "open"

    async def _go_on(self, txn: str, said: str) -> None:
        """People have let it go, or settled it: the script goes on by itself, or runs again, or it is resumed."""
        snapshot = await self._snapshot(txn)
        key = snapshot.transaction.run_key
        if snapshot.transaction.agent != self._folder.agent:
            print_lines(f"{key}: {said}; {snapshot.transaction.agent} runs elsewhere and goes on there")
        elif self._script.running:
            self._answered.add(txn)
            self._after_grace(self._finish)
        elif key.startswith(_UNNAMED):
            print_lines(f"{said}, but its transaction has no key, so {WHY_NOT_RERUN[said]}; {_KEY_HINT}")
            await self._resume()
        else:
            self._answered.add(txn)
            print_lines(f"{key}: {said}; running {self._folder.script.name} again")
            await self._script.start()

    async def _finish(self) -> None:
        """Resume what people have answered about, where the script has left something of it to do."""
        left = [txn for txn in self._answered if has_pending_work(await self._snapshot(txn))]
        self._answered.clear()
        if left:
            await self._resume()

    async def _resume(self) -> None:
        print_lines(f"countersign resume --tools {self._folder.script.name}")
        tools = str(self._folder.script)
        await processes.run_process(("-m", "countersign.cli", "resume", "--tools", tools), self._env)

    def _after_grace(self, step: Step) -> None:
        asyncio.get_running_loop().call_later(_GRACE_S, lambda: self._todo.put_nowait(step))

    async def _task(self, task_id: str) -> TaskContext:
        return await self._ctx.db.read(lambda conn: read_task_context(conn, task_id))

    async def _snapshot(self, txn: str) -> repository.Snapshot:
        return await self._ctx.db.read(lambda conn: repository.require_transaction(conn, txn))


def _denial_reason(snapshot: repository.Snapshot, effect: EffectRow) -> str:
    """What the rules say of an effect that they, and not a person, denied."""
    decision = snapshot.decisions.get(effect.decision_id)
    if decision is None or decision.outcome != Verdict.DENY:
        return ""
    return f": {decision.reasons[0]['text']}" if decision.reasons else ""


_KEY_HINT = 'write transaction(key="what-this-step-is-about")'


def read_keyboard(heard: Callable[[str], None]) -> None:
    """Hand on each line that is typed, until there is no more; never keeps the program from ending."""
    loop = asyncio.get_running_loop()

    def listen() -> None:
        rest = b""
        try:
            while chunk := os.read(0, 4096):
                *lines, rest = (rest + chunk).split(b"\n")
                for line in lines:
                    loop.call_soon_threadsafe(heard, line.decode(errors="replace").strip())
        except (OSError, RuntimeError):  # no terminal to read from, or the loop has ended
            return

    threading.Thread(target=listen, daemon=True, name="keys").start()
