"""A story: an agent, a service and people, each a process of its own, any of which may die once.

A killed process is started again and repeats its work, as an operator, a supervisor or a person would. Nothing here
repairs anything.
"""

from __future__ import annotations

import itertools
import json
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self, TypeVar

import httpx2
from sqlalchemy import Connection, create_engine, func, select
from sqlalchemy.pool import NullPool

from countersign import ToolRegistry
from countersign.contract import PrivateKey
from countersign.manifests.drafts import manifest_json
from examples.local_service import free_port
from examples.person import PageError, Person
from policy_service.audit.log import highest_index
from policy_service.channels.admin.socket import run_admin_command
from policy_service.errors import ServiceError, StartError
from policy_service.settings import load_settings
from policy_service.storage.core import Row, insert_row, table
from policy_service.storage.slack_tables import SlackStatusRow
from policy_service.storage.system_tables import AuditRow, OutboxRow
from policy_service.storage.tables import EffectRow, ReviewRow
from tests.conventions.repository import ROOT
from tests.crash.agent import AGENT, Life, Tools
from tests.crash.children import Command, ServiceChild, run_agent, run_command
from tests.crash.dying import Death
from tests.crash.invariants import Evidence, breaches
from tests.fakes.desk import changed, notes_database, write_key
from tests.fakes.operated import environment
from tests.fakes.world import fresh_data

T = TypeVar("T")
PATIENCE_S = 180.0  # what somebody had claimed from the outbox when he died is due again after 60
SWEEPS = {"SWEEP_S": "0.5", "POLL_BUNDLE_S": "0.5", "HOUSEKEEPING_S": "1", "SESSION_TOUCH_S": "0"}

POLICY = """
@id("desk-may-act")
permit (principal in Role::"support-agent", action, resource);

@id("large") @approval("finance") @answer_within("1h")
forbid (principal, action == Action::"refund", resource)
when { context.input.amount_cents > 5000 };

@id("huge") @approval("finance") @quorum("2")
forbid (principal, action == Action::"refund", resource)
when { context.input.amount_cents > 200000 };

@id("never") @doc("Refunds above 5,000.00 are not made here.")
forbid (principal, action == Action::"refund", resource)
when { context.input.amount_cents > 500000 };

@id("unsure") @doc("A rule that cannot be worked out.")
forbid (principal, action == Action::"refund", resource)
when { context.input.order_id == "overflow" && 9223372036854775807 + context.input.amount_cents > 0 };

@id("brief") @approval("finance") @answer_within("1s")
forbid (principal, action == Action::"refund", resource)
when { context.input.order_id == "brief" };

@id("lapsing") @approval("finance") @valid_for("1s")
forbid (principal, action == Action::"refund", resource)
when { context.input.order_id == "lapsing" };

@id("undo-lapsing") @approval("finance") @valid_for("1s")
forbid (principal, action == Action::"void", resource)
when { context.input.charge_id == "c-lapsing" };
"""
STRICTER = '@id("closed") @doc("Closed for today.") forbid (principal, action == Action::"refund", resource);'
SLOW = """
@id("slow") @approval("finance") @answer_within("80s") @remind("1s") @escalate("admin")
forbid (principal, action == Action::"refund", resource)
when { context.input.order_id == "slow" };

@id("hopeless") @approval("finance") @quorum("9")
forbid (principal, action == Action::"refund", resource)
when { context.input.order_id == "hopeless" };
"""


@dataclass
class Story:
    """One service with one agent, in a folder."""

    folder: Path
    database_url: str = ""
    side: str = "service"  # who is to die: "service", "operator" or "agent"
    death: Death | None = None
    more: dict[str, str] = field(default_factory=dict)
    votes_acknowledged: list[tuple[str, str]] = field(default_factory=list)
    service: ServiceChild | None = None
    died: bool = False

    def __post_init__(self) -> None:
        self.data, self.bundle, self.agent = (self.folder / name for name in ("data", "bundle", "agent"))
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"

    # ---------------------------------------------------------------------------------------------- the stage

    def __enter__(self) -> Self:
        self._write_bundle()
        self._prepare_agent()
        return self

    def __exit__(self, *_: object) -> None:
        if self.service is not None:
            self.service.close()

    def begin(self) -> Self:
        """A data folder that was set up, an enrolled agent, a running service."""
        shutil.copytree(fresh_data(), self.data)
        self.enroll()
        self.serve()
        return self

    def enroll(self) -> None:
        """The agent of the story with its key."""
        args = {"name": AGENT, "roles": ["support-agent"], "jwk": self.key.public.jwk()}
        self.operator("agent-enroll", args)

    def _write_bundle(self) -> None:
        (self.bundle / "tools").mkdir(parents=True)
        self.policies("")
        (self.bundle / "groups.toml").write_bytes((ROOT / "policies" / "groups.toml").read_bytes())
        registry = ToolRegistry()
        Tools(self.folder, registry)
        for one in registry:
            if one.lane == "staged":
                recheck = {"recheck": one.name == "invoice"}
                manifest = changed(one.draft_manifest(), **recheck)
                (self.bundle / "tools" / f"{one.name}.json").write_bytes(manifest_json(manifest))

    def policies(self, added: str) -> None:
        """The rules from now on: the usual ones, and these."""
        fresh = self.bundle / "desk.cedar.new"
        fresh.write_text(POLICY + added)
        fresh.replace(self.bundle / "desk.cedar")

    def groups(self, old: str, new: str) -> None:
        """Who is in which group from now on: the shipped file with one change."""
        fresh = self.bundle / "groups.toml.new"
        fresh.write_text((ROOT / "policies" / "groups.toml").read_text().replace(old, new))
        fresh.replace(self.bundle / "groups.toml")

    def _prepare_agent(self) -> None:
        self.agent.mkdir()
        self.key = PrivateKey.generate()
        write_key(self.agent / "agent.pem", self.key)
        notes_database(self.agent)

    @property
    def env(self) -> dict[str, str]:
        """The settings of the service."""
        more = {"PUBLIC_URL": self.url, "DATABASE_URL": self.database_url, **SWEEPS, **self.more}
        more = {f"COUNTERSIGN_{name}": value for name, value in more.items()}
        return environment(self.data, self.bundle, self.port, **more)

    def _death_of(self, side: str) -> Death | None:
        return self.death if side == self.side and not self.died else None

    # ---------------------------------------------------------------------------------------------- the service

    def serve(self) -> None:
        """Have the service run: start it, or start it again when it has died."""
        if self.service is not None and not self.service.ended:
            return
        for _ in range(3):
            if self.service is not None:
                self._bury("the service", self.service.killed)
                self.service.close()
            self.service = ServiceChild(Command(("serve",), self.env, self.folder, self._death_of("service")))
            if self.service.wait_until_open():
                return
        raise AssertionError(f"the service does not start: {self.service and self.service.said()[-2000:]}")

    def stop(self) -> None:
        """Stop the service as Ctrl-C does."""
        while True:
            self.serve()
            assert self.service is not None
            self.service.signal(signal.SIGINT)
            self.service.wait()
            if not self.service.killed:
                self.service.close()
                self.service = None
                return

    def command(self, *words: str) -> int:
        """One verb of the operator's command line, again if it died; its exit code."""
        code = run_command(Command(words, self.env, self.folder, self._death_of("operator")))
        if code == -9:
            self._bury("the operator's command", True)
            return self.command(*words)
        return code

    def alone(self, verb: str, args: dict[str, Any]) -> None:
        """One verb by the command line itself, in a process of its own; again if it died on the way."""
        died = self.died
        code = self.command("verb", verb, json.dumps(args))
        assert code == 0 or self.died != died, f"{verb} was refused"

    def operator(self, verb: str, args: dict[str, Any]) -> Any:
        """One verb through the running service, or by itself when it is down; again if it died on the way."""
        settings = _settings(self.env)
        return self.patiently(lambda: run_admin_command(settings, verb, args))

    def _bury(self, who: str, killed: bool) -> None:
        assert killed and self.death is not None and not self.died, f"{who} ended by itself"
        self.died = True

    def patiently(self, act: Callable[[], T]) -> T:
        """Do something that needs the service, and again once it is back."""
        until = time.monotonic() + PATIENCE_S
        while True:
            try:
                return act()
            except (httpx2.TransportError, ConnectionError, ServiceError, StartError) as error:
                gone = self.service is not None and self.service.wait_if_dying()
                if not gone or time.monotonic() > until:
                    raise AssertionError(f"the service is there and refuses: {error}") from error
                self.serve()

    # ---------------------------------------------------------------------------------------------- the agent

    def live(self, flow: str, key: str = "", *, dies: Death | None = None, wait: float = 0) -> dict[str, Any]:
        """One life of the agent, and further ones while somebody died under it. `dies` is part of the story."""
        until = time.monotonic() + PATIENCE_S
        while True:
            self.serve()
            death = dies or self._death_of("agent")
            said = run_agent(Life(self.agent, self.url, flow, key, wait, death))
            if said["raised"] == "killed":
                if dies is not None:
                    return said
                self._bury("the agent", True)
                continue
            if (
                said["raised"] == "ServiceUnavailable"
                and self.service is not None
                and self.service.wait_if_dying()
            ):
                assert time.monotonic() < until
                continue
            assert said["raised"] != "ServiceUnavailable", said
            assert dies is None, f"the agent did not die at {dies}: {said}"
            return said

    def try_to_live(self, flow: str, key: str) -> dict[str, Any]:
        """One life of the agent; any result is accepted."""
        return run_agent(Life(self.agent, self.url, flow, key))

    # ---------------------------------------------------------------------------------------------- the people

    def as_person(self, act: Callable[[Person], object], sub: str = "maya") -> None:
        """Somebody signs in and does something by the pages; again when the service died under it."""

        def once() -> None:
            with Person(self.url) as person:
                person.sign_in(self.operator("sign-in-link", {"sub": sub, "name": sub.title()})["url"])
                act(person)

        self.patiently(once)

    def answer(self, sub: str, review_url: str, verdict: str = "approve") -> None:
        """Somebody reads the review and answers it by the form."""
        tries = itertools.count(1)

        def act(person: Person) -> None:
            again = next(tries) > 1
            try:
                (person.approve if verdict == "approve" else person.deny)(review_url, "as agreed")
            except PageError:  # the first attempt was recorded without an answer
                if not again:
                    raise
                return
            self.votes_acknowledged.append((sub, review_url.rpartition("/")[2]))

        self.as_person(act, sub)

    def answer_review(self, said: dict[str, Any], *people: str, verdict: str = "approve") -> None:
        """These people answer the review that a life of the agent waits for; one that was killed may wait for none."""
        for person in people if said["raised"] == "ReviewPending" else ():
            self.answer(person, said["reviews"][0], verdict)

    def insert(self, row: Row) -> None:
        """A row as another process would have left it."""
        with self.reading() as conn:
            insert_row(conn, row)
            conn.commit()

    def settle(self, sub: str, answer: str) -> None:
        """Somebody settles the oldest task by its form."""
        tries = itertools.count(1)

        def act(person: Person) -> None:
            again, waiting = next(tries) > 1, person.open_tasks()
            assert waiting or again, "nothing is to be settled"
            if waiting:
                person.settle(waiting[0], answer, "looked it up")

        self.as_person(act, sub)

    # ---------------------------------------------------------------------------------------------- the end

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        """The service's database, from outside."""
        engine = create_engine(_settings(self.env).database_url, poolclass=NullPool)
        try:
            with engine.connect() as conn:
                yield conn
        finally:
            engine.dispose()

    def until(self, what: str, done: Callable[[Connection], bool]) -> None:
        """Wait until the database shows something; the service is kept running."""
        until = time.monotonic() + PATIENCE_S
        with self.reading() as conn:
            while not done(conn):
                conn.rollback()  # the next look sees what was committed since
                assert time.monotonic() < until, f"never came about: {what}"
                time.sleep(0.1)
                self.serve()

    def finish(self) -> None:
        """Let everything come to rest: the agent goes through its journal twice, the service through its queues."""
        for _ in range(2):
            self.live("resume")
            self.until("everything is sent and numbered", _at_rest)
        # Who dies while it stops leaves its lease behind, and the next life may stop before that is over.
        while not self._rests():
            self.until("everything is sent and numbered", _at_rest)

    def _rests(self) -> bool:
        self.stop()
        with self.reading() as conn:
            return _at_rest(conn)

    def breaches(self) -> list[str]:
        """What is wrong, once the story is over."""
        with self.reading() as conn:
            evidence = Evidence(conn, (self.agent,), self.votes_acknowledged, frozenset({"invoice"}))
            assert evidence.log
            everywhere = [*passed(self.folder / "points.log"), *passed(self.agent / "agent-points.log")]
            unnamed = {death.point for death in everywhere if death.phase == "unnamed"}
            found = [f"{where} commits and is no fault point" for where in sorted(unnamed)]
            return [*breaches(evidence), *found]


def _at_rest(conn: Connection) -> bool:
    unsent = select(func.count()).select_from(table(OutboxRow)).where(table(OutboxRow).c.state == "waiting")
    unnumbered = select(func.count()).select_from(table(AuditRow)).where(table(AuditRow).c.idx.is_(None))
    effects, reviews = table(EffectRow).c, table(ReviewRow).c
    redeemed = select(func.count()).select_from(table(EffectRow)).where(effects.state == "redeemed")
    now = time.time()
    late = [row.answer_by for row in conn.execute(select(reviews.answer_by).where(reviews.state == "open"))
            if row.answer_by.timestamp() <= now]  # fmt: skip
    waits = any(conn.execute(query).scalar_one() for query in (unsent, unnumbered, redeemed))
    return not late and not waits and _slack_is_current(conn)


def _slack_is_current(conn: Connection) -> bool:
    """Whether the log was followed to its end, where there is Slack: what is not owed yet does not wait yet."""
    reached = conn.scalars(select(table(SlackStatusRow).c.upto)).all()
    return all(upto == highest_index(conn) for upto in reached)


def _settings(env: dict[str, str]) -> Any:
    given = {name.removeprefix("COUNTERSIGN_").lower(): value for name, value in env.items() if value}
    tables = {name: json.loads(value) for name, value in given.items() if value.startswith(("[", "{"))}
    return load_settings(**(given | tables))


def passed(log: Path) -> list[Death]:
    """The points that were passed in a story, by all processes that wrote this log."""
    found = [line.split("\t") for line in log.read_text().splitlines()] if log.exists() else []
    return [Death(point, phase, int(nth)) for phase, point, nth, _ in found]
