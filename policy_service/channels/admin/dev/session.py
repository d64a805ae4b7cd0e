"""A dev session: react to saves, keys, new reviews and tasks, and to people's answers.

Steps run one at a time, in order: a save during an import waits for it. The service keeps running when the script or
the policies fail. Errors are printed, and the session waits for the next save. At the end the script stops first,
while the service still accepts its compensations.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Final

from countersign.contract import TaskAnswer, TaskKind, TxnState, Verdict, manifest_file
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
    read_keyboard,
    warn_manifest_not_in_force,
    warn_unknown_tool,
)
from policy_service.channels.admin.dev.pending import has_pending_work
from policy_service.identity.dev_signin import create_link
from policy_service.pdp.rules import UNKNOWN_TOOL, UNSEEN
from policy_service.queries import repository
from policy_service.queries.context import Context
from policy_service.queries.task_context import TaskContext, read_task_context, settlement_of
from policy_service.queries.tasks import task_url
from policy_service.storage.tables import EffectRow
from policy_service.workflow.effects.activate import activate

APPROVED: Final = "approved"
SETTLED: Final = "settled"
WHY_NOT_RERUN: Final[Mapping[str, str]] = MappingProxyType(
    {APPROVED: "another run would need another approval", SETTLED: "another run would repeat everything"}
)
"""Why a step without a run key is not run again, by what people answered."""

RESUMABLE_ANSWERS: Final = frozenset(
    {TaskAnswer.FIRED, TaskAnswer.NOT_FIRED, TaskAnswer.COMPENSATED, TaskAnswer.LEFT_STANDING}
)
"""Answers after which an agent can resume. The others change nothing, or end the transaction unredeemed."""


Step = Callable[[], Awaitable[None]]
_UNNAMED = "unnamed-"  # prefix of the SDK's generated run keys, which differ in each run of the script
_GRACE_S = 3.0  # for a script that still runs to resume by itself
_FEED_WAIT_S = 60.0
_MAX_LISTED = 5  # reviews, and tasks, that are printed at the start of a session


@dataclass(frozen=True, slots=True)
class DevPerson:
    """The person who signs in."""

    sub: str
    name: str


class Session:
    """One dev session."""

    def __init__(
        self,
        ctx: Context,
        folder: DevFolder,
        person: DevPerson,
        arguments: Sequence[str],
        env: Mapping[str, str],
    ) -> None:
        self._ctx, self._folder, self._person, self._env = ctx, folder, person, env
        self._steps: asyncio.Queue[Step] = asyncio.Queue()
        words = (processes.SCRIPT_RUNNER, str(folder.script), *arguments)
        self._script = processes.Script(words, env, self._ended)
        self._tools: Tools | None = None
        self._last_bundle_report: str | None = None
        self._answered: set[str] = set()  # transactions that people have answered and that may resume
        self._outdated = False  # the current run began under earlier policies
        self._repeats = False  # another run would fire again: the last one had a transaction without a key
        self._over = asyncio.Event()

    async def run(self) -> None:
        """Run until the developer quits, or until cancelled."""
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

    # -- events, one at a time ----------------------------------------------------------------------------------------

    async def _work(self) -> None:
        await self._report_bundle()
        await self._report_open_work()
        await self._load_script()
        while True:
            step = await self._steps.get()
            await step()

    async def _watch(self) -> None:
        async for changed in watch_saves(self._folder.bundle, self._files):
            if any(path.is_relative_to(self._folder.bundle) for path in changed):
                self._steps.put_nowait(self._load_saved_bundle)
            if any(path in self._files() for path in changed):
                self._steps.put_nowait(self._load_script)

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
            self._steps.put_nowait(lambda txn=event.txn: self._continue(txn, APPROVED))  # type: ignore[misc]
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
            self._steps.put_nowait(steps[line])
        else:
            print_lines(KEYS_HELP)

    # -- the script ---------------------------------------------------------------------------------------------------

    async def _load_script(self) -> None:
        """The script was saved: update its manifests and run it."""
        await self._script.stop()
        if not self._folder.script.is_file():
            print_lines(f"{self._folder.script.name} was deleted; save it again to run it")
            return
        try:
            self._tools = await read_tools(self._folder.script, self._env)
            report = merge_manifests(self._folder, self._tools)
        except ToolsError as error:
            print_lines(
                f"{self._folder.script.name} was not run:", *str(error).splitlines(), "fix it and save"
            )
            return
        except OSError as error:
            print_lines(f"the manifests cannot be written: {error}")
            return
        print_lines(*report)
        await self._load_bundle()
        await self._start()

    async def _run_again(self) -> None:
        if self._tools is None:
            await self._load_script()
            return
        print_lines(f"running {self._folder.script.name} again")
        await self._start()

    async def _start(self) -> None:
        self._outdated = self._repeats = False
        await self._script.start()

    def _ended(self, status: int) -> None:
        print_lines(exit_text(self._folder.script.name, status))
        if self._answered:
            self._steps.put_nowait(self._finish)
        if self._outdated:
            self._steps.put_nowait(self._run_under_new_policies)

    # -- the policies -------------------------------------------------------------------------------------------------

    async def _load_bundle(self) -> None:
        await activate(self._ctx)
        await self._report_bundle()

    async def _load_saved_bundle(self) -> None:
        before = self._ctx.active.current.digest
        await self._load_bundle()
        if self._tools is not None and self._ctx.active.current.digest != before:
            await self._run_under_new_policies()

    async def _run_under_new_policies(self) -> None:
        """Run the script again, but never stop a run for it: an effect may be firing."""
        self._outdated = self._script.running
        if self._repeats and not self._outdated:
            print_lines(f"not run again: {WHY_NOT_RERUN[SETTLED]}; {_KEY_HINT}, or press r and Enter")
        elif not self._outdated:
            await self._run_again()

    async def _report_bundle(self) -> None:
        """Print the active bundle, or why the folder is refused, each once."""
        status, where = self._ctx.active.status(), self._folder.shown(self._folder.bundle)
        now = str(status.error) if status.error is not None else str(status.active_digest)
        before, self._last_bundle_report = self._last_bundle_report, now
        if now == before:
            return
        if status.error is not None:
            problems = [f"    {where}/{line}" for line in now.splitlines()]
            print_lines("policies refused; the last valid ones stay active until this is fixed:", *problems)
            return
        again = "reloaded" if before is not None else "active"
        print_lines(f"policies {again} at digest {now[:12]}: {where}/")
        for warning in self._ctx.active.current.warnings:
            print_lines(f"    warning: {where}/{warning}")

    # -- people -------------------------------------------------------------------------------------------------------

    async def print_sign_in_link(self) -> None:
        """Print a new sign-in link."""
        person, settings = self._person, self._ctx.settings
        link = await self._ctx.db.write(lambda tx: create_link(tx, settings, person.sub, person.name))
        print_lines(f"sign in as {person.name}: {link}")

    async def _report_open_work(self) -> None:
        """Print open reviews and tasks of earlier sessions, which cause no new event."""
        db, now = self._ctx.db, self._ctx.clock()
        # Expired reviews are left out, though no job has ended them yet.
        reviews = await db.read(
            lambda conn: repository.list_open_reviews(conn, after=(now, ""), limit=_MAX_LISTED + 1)
        )
        tasks = await db.read(lambda conn: repository.list_tasks(conn, state="open", limit=_MAX_LISTED + 1))
        for review in reviews[:_MAX_LISTED]:
            await self._report_review(review.review_id)
        for task in tasks[:_MAX_LISTED]:
            await self._on_task_opened(task.task_id)
        if max(len(reviews), len(tasks)) > _MAX_LISTED:
            print_lines(f"more are open: {self._ctx.settings.public_url}/queue and /tasks")

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
        unseen = any(gate["policy_id"] == UNSEEN for gate in gates)
        print_review(
            review.tool, groups, f"{self._ctx.settings.public_url}/reviews/{review_id}", unseen=unseen
        )

    def _report_unknown_tool(self, tool: str) -> None:
        """Print why no policy evaluated the tool: its manifest came later, is not active, or does not exist."""
        error, bundle = self._ctx.active.status().error, self._folder.bundle
        where = self._folder.shown(bundle)
        if tool in self._ctx.active.current.manifests:
            print_manifest_added(tool)
        elif error is not None and (bundle / "tools" / manifest_file(tool)).is_file():
            warn_manifest_not_in_force(tool, where, str(error).partition("\n")[0])
        else:
            warn_unknown_tool(tool, where)

    async def _report_task(self, task_id: str) -> None:
        case = await self._task(task_id)
        undoing = case.effect.compensates is not None
        print_task(case.effect.tool, case.kind, task_url(self._ctx, task_id), of_compensation=undoing)

    async def _report_end(self, txn: str) -> None:
        snapshot = await self._snapshot(txn)
        self._answered.discard(txn)
        key = snapshot.transaction.run_key
        states = [f"{one.tool} {one.state}{_denial_reason(snapshot, one)}" for one in snapshot.effects]
        settled = snapshot.transaction.state == TxnState.SETTLED.value
        if settled and key.startswith(_UNNAMED) and snapshot.transaction.agent == self._folder.agent:
            self._repeats = True
        print_lines(
            f"{key}: {', '.join(states)}" if settled else f"{key}: ended, nothing fired ({', '.join(states)})"
        )

    async def _report_compensated(self, txn: str, effect_id: str) -> None:
        """Print a compensation, which may follow the printed end of its transaction."""
        snapshot = await self._snapshot(txn)
        effect = snapshot.find(effect_id)
        if effect is not None:
            print_lines(f"{snapshot.transaction.run_key}: {effect.tool} was compensated")

    # -- after people have answered -----------------------------------------------------------------------------------

    async def _on_effect_released(self, txn: str, effect_id: str) -> None:
        """People approved a compensation: unlike for a transaction, no transaction_ready event follows."""
        effect = (await self._snapshot(txn)).find(effect_id)
        if effect is not None and effect.compensates is not None:
            self._steps.put_nowait(lambda: self._continue(txn, APPROVED))

    async def _on_task_settled(self, task_id: str) -> None:
        """A task is settled: after a person's answer the script resumes; after its agent's report nothing is left."""
        case = await self._task(task_id)
        answer = settlement_of(case)
        if answer is not None and answer["answer"] in RESUMABLE_ANSWERS:
            self._steps.put_nowait(lambda: self._continue(case.task.txn, SETTLED))

    async def _on_task_opened(self, task_id: str) -> None:
        """Print the task, but a compensation only if the script's next run does not perform it."""
        case = await self._task(task_id)
        if case.kind is TaskKind.COMPENSATION_DUE and case.agent.name == self._folder.agent:
            self._after_grace(lambda: self._compensate_or_report(task_id))
        else:
            await self._report_task(task_id)

    async def _compensate_or_report(self, task_id: str) -> None:
        """Let the agent compensate first: a person asked at the same time might do it a second time."""
        if await self._is_open(task_id):
            await self._resume()
        if await self._is_open(task_id):
            await self._report_task(task_id)

    async def _is_open(self, task_id: str) -> bool:
        return (await self._task(task_id)).task.state == "open"

    async def _continue(self, txn: str, answer: str) -> None:
        """People approved or settled it: a running script resumes by itself; otherwise run it again or resume."""
        snapshot = await self._snapshot(txn)
        key = snapshot.transaction.run_key
        if snapshot.transaction.agent != self._folder.agent:
            print_lines(f"{key}: {answer}; {snapshot.transaction.agent} runs elsewhere and resumes there")
        elif self._script.running:
            self._answered.add(txn)
            self._after_grace(self._finish)
        elif key.startswith(_UNNAMED):
            print_lines(f"{answer}, but its transaction has no key, so {WHY_NOT_RERUN[answer]}; {_KEY_HINT}")
            await self._resume()
        else:
            self._answered.add(txn)
            print_lines(f"{key}: {answer}; running {self._folder.script.name} again")
            await self._start()

    async def _finish(self) -> None:
        """Resume the answered transactions that still have pending work."""
        left = [txn for txn in self._answered if has_pending_work(await self._snapshot(txn))]
        self._answered.clear()
        if left:
            await self._resume()

    async def _resume(self) -> None:
        print_lines(f"countersign resume --tools {self._folder.script.name}")
        tools = str(self._folder.script)
        await processes.run_process(("-m", "countersign.cli", "resume", "--tools", tools), self._env)

    def _after_grace(self, step: Step) -> None:
        asyncio.get_running_loop().call_later(_GRACE_S, lambda: self._steps.put_nowait(step))

    async def _task(self, task_id: str) -> TaskContext:
        return await self._ctx.db.read(lambda conn: read_task_context(conn, task_id))

    async def _snapshot(self, txn: str) -> repository.Snapshot:
        return await self._ctx.db.read(lambda conn: repository.require_transaction(conn, txn))


def _denial_reason(snapshot: repository.Snapshot, effect: EffectRow) -> str:
    """The first reason of an effect that the policy denied."""
    decision = snapshot.decisions.get(effect.decision_id)
    if decision is None or decision.outcome != Verdict.DENY:
        return ""
    return f": {decision.reasons[0]['text']}" if decision.reasons else ""


_KEY_HINT = 'write transaction(key="what-this-step-is-about")'
