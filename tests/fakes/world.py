"""The real service in this process: real database, real Cedar, real proofs and sessions; only the wire is short.

Agents sign every request as the SDK would; people sign in by the one-time link and send the forms' headers. There is no
back door: what a test needs of the inside it reads from the log.
"""

from __future__ import annotations

import atexit
import functools
import json
import re
import shutil
import tempfile
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Self
from urllib.parse import urlsplit
from uuid import uuid4

import httpx2
import structlog
from fastapi import FastAPI
from sqlalchemy import or_, select

from countersign.contract import TYP_RECEIPT, TYP_RELEASE, PrivateKey, make_proof, open_token
from countersign.contract.receipt import ReceiptClaims
from countersign.contract.release import ReleaseClaims
from policy_service.app import Service, create_app
from policy_service.channels.admin.commands import COMMANDS
from policy_service.settings import Settings, load_settings
from policy_service.storage.core import table
from policy_service.storage.database import Database
from policy_service.storage.migrations import migrate
from policy_service.storage.system_tables import AuditRow
from policy_service.tokens.keys import make_keys
from policy_service.workflow.effects.activate import activate, reevaluate_open_effects
from policy_service.workflow.expiry import sweep
from policy_service.workflow.reviews.unsatisfiable import update_unsatisfiable_reviews
from policy_service.workflow.revocation.restore import reconcile_epoch

SUPPORT_BUNDLE = Path(__file__).parents[2] / "policies"
URL = "http://127.0.0.1:8420"


# Without this, structlog prints a fault with the values of every variable: slow, and full of what should stay secret.
structlog.configure(processors=[structlog.processors.format_exc_info, structlog.processors.JSONRenderer()])


class Clock:
    """The time of a whole world. It runs by itself; a test moves it on, or stops it to stand on an edge."""

    def __init__(self) -> None:
        self._ahead = timedelta()
        self._stopped: datetime | None = None

    @classmethod
    def from_noon(cls) -> Self:
        """It runs from the next noon on: no calendar day ends in the middle of a test."""
        clock = cls()
        clock.pass_(hours=(12 - clock().hour) % 24)
        return clock

    def __call__(self) -> datetime:
        return self._stopped or datetime.now(UTC) + self._ahead

    def pass_(self, **delta: float) -> None:
        """Let time pass."""
        if self._stopped is not None:
            self._stopped += timedelta(**delta)
        else:
            self._ahead += timedelta(**delta)

    def go_on(self) -> None:
        """It runs by itself again, and never back."""
        if self._stopped is not None:
            self._ahead = max(self._ahead, self._stopped - datetime.now(UTC))
            self._stopped = None

    def stop_at(self, moment: datetime) -> None:
        """It is exactly this moment, until it is moved on."""
        self._stopped = moment


@dataclass
class Agent:
    """An enrolled agent with its key, speaking the wire by hand."""

    name: str
    key: PrivateKey
    http: httpx2.AsyncClient
    clock: Clock = field(default_factory=Clock)
    nonce: str = ""
    txns: set[str] = field(default_factory=set)  # what it has submitted

    @property
    def attempt(self) -> str:
        """A name for an attempt that no other agent takes."""
        return f"{self.name}-attempt"

    async def send(
        self, method: str, path: str, body: Any = None, *, headers: Mapping[str, Any] | None = None
    ) -> httpx2.Response:
        """One request with a fresh proof, repeated once when the service asks for its newer nonce."""
        raw = b"" if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
        answer = await self._once(method, path, raw, headers or {})
        if answer.status_code == 401 and answer.json()["code"] == "use_nonce":
            answer = await self._once(method, path, raw, headers or {})
        return answer

    def proof(self, method: str, path: str, raw: bytes = b"") -> str:
        """What it signs into a request, with the nonce it knows."""
        target = urlsplit(path)
        where = {"url_path": target.path, "query": target.query, "nonce": self.nonce or "none-yet"}
        now = int(self.clock().timestamp())
        return make_proof(self.key, agent=self.name, method=method, body=raw, now=now, **where)

    async def _once(self, method: str, path: str, raw: bytes, headers: Mapping[str, Any]) -> httpx2.Response:
        kind = {"Content-Type": "application/json"} if raw else {}
        sent = {"Agent-Proof": self.proof(method, path, raw), **kind, **headers}
        answer = await self.http.request(method, path, content=raw, headers=sent)
        self.nonce = answer.headers.get("agent-nonce", self.nonce)
        return answer

    async def submit(self, *effects: Any, run_key: str = "run-1", **members: Any) -> httpx2.Response:
        """Submit a transaction under a fresh idempotency key, unless the caller names one."""
        headers = {"Idempotency-Key": members.pop("idempotency_key", uuid4().hex)}
        if "wait" in members:
            headers["Prefer"] = f"wait={members.pop('wait')}"
        body = {"run_key": run_key, "effects": list(effects), **members}
        answer = await self.send("POST", "/v1/transactions", body, headers=headers)
        if answer.is_success:
            self.txns.add(answer.json()["txn"])
        return answer

    async def release(self, view: Mapping[str, Any]) -> httpx2.Response:
        """Ask for the releases of a transaction as it was seen."""
        return await self.send("POST", f"/v1/transactions/{view['txn']}/release", {"rev": view["rev"]})

    async def redeem(self, tokens: list[str], attempt_id: str | None = None) -> httpx2.Response:
        """Spend tokens under an attempt."""
        body = {"tokens": tokens, "attempt_id": attempt_id or self.attempt}
        return await self.send("POST", "/v1/redemptions", body)

    async def spend(self, view: Mapping[str, Any], attempt_id: str | None = None) -> dict[str, Any]:
        """Ask for the releases of a ready transaction and redeem them."""
        released = await self.release(view)
        assert released.status_code == 200, released.text
        answer = await self.redeem(released.json()["releases"], attempt_id)
        assert answer.status_code == 200, answer.text
        spent: dict[str, Any] = answer.json()
        return spent

    async def report(self, attempt_id: str, *outcomes: dict[str, Any], **more: Any) -> httpx2.Response:
        """Say what became of effects."""
        body = {"attempt_id": attempt_id, "outcomes": list(outcomes), **more}
        return await self.send("POST", "/v1/outcomes", body)

    async def accept(self, proposal_id: str) -> httpx2.Response:
        """Take other arguments."""
        return await self.send("POST", f"/v1/proposals/{proposal_id}/accept", {})

    async def decline(self, proposal_id: str, reason: str | None = None) -> httpx2.Response:
        """Keep the arguments as they are."""
        said = {} if reason is None else {"reason": reason}
        return await self.send("POST", f"/v1/proposals/{proposal_id}/decline", said)

    async def see(self, txn: str, wait: int | None = None) -> dict[str, Any]:
        """The transaction as it is."""
        headers = {} if wait is None else {"Prefer": f"wait={wait}"}
        answer = await self.send("GET", f"/v1/transactions/{txn}", headers=headers)
        assert answer.status_code == 200, answer.text
        view: dict[str, Any] = answer.json()
        return view


@dataclass
class Visitor:
    """A signed-in person, by cookie, with the form token of their session."""

    sub: str
    http: httpx2.AsyncClient
    cookie: str
    csrf: str
    origin: str = URL

    def headers(self) -> dict[str, str]:
        """What a vote of theirs carries."""
        cookie = {"Cookie": f"countersign_dev={self.cookie}", "Content-Type": "application/json"}
        return cookie | {"Origin": self.origin, "X-CSRF-Token": self.csrf}

    async def get(self, path: str) -> httpx2.Response:
        """Look at something."""
        return await self.http.get(path, headers={"Cookie": f"countersign_dev={self.cookie}"})

    async def vote(
        self,
        view: Mapping[str, Any],
        verdict: str = "approve",
        *,
        effect: int = 0,
        reason: str | None = None,
        **other: Any,
    ) -> httpx2.Response:
        """Vote on one effect of a transaction as the agent's view shows it."""
        ballot = {"verdict": verdict, **stamp(view, effect), **other}
        return await self._say(f"{_review(view, effect)}/votes", reason, ballot)

    async def propose(
        self,
        view: Mapping[str, Any],
        args: Mapping[str, Any],
        *,
        effect: int = 0,
        reason: str | None = "half of it was delivered",
        **other: Any,
    ) -> httpx2.Response:
        """Propose other arguments for one effect of a transaction as the agent's view shows it."""
        wish = {**stamp(view, effect), "args": args, **other}
        return await self._say(f"{_review(view, effect)}/proposals", reason, wish)

    async def _say(self, path: str, reason: str | None, body: dict[str, Any]) -> httpx2.Response:
        said = body if reason is None else {"reason": reason} | body
        return await self.http.post(path, content=json.dumps(said).encode(), headers=self.headers())

    async def proposed(self, view: Mapping[str, Any], args: Mapping[str, Any], **how: Any) -> str:
        """The id of a proposal that was taken."""
        answer = await self.propose(view, args, **how)
        assert answer.status_code == 201, answer.text
        found: str = answer.json()["effect"]["review"]["proposals"][-1]["proposal_id"]
        return found

    async def task(self, view: Mapping[str, Any], kind: str, **of: Any) -> dict[str, Any]:
        """The one open task of a kind about a transaction, with what is known of it."""
        page = (await self.get(f"/v1/tasks?limit=200&kind={kind}")).json()
        of = {"txn": view["txn"], **of}
        (found,) = [task for task in page["tasks"] if of.items() <= task.items()]
        detail: dict[str, Any] = (await self.get(f"/v1/tasks/{found['task_id']}")).json()
        return detail

    async def settle(
        self, task: Mapping[str, Any], answer: str, *, reason: str | None = "I asked the bank", **other: Any
    ) -> httpx2.Response:
        """Say of a task, as its details show it, what is so."""
        effect = task["effect"]
        read = {"effect_digest": effect["effect_digest"], "effect_state": effect["state"]}
        word = {"answer": answer, **read, **other}
        return await self._say(f"/v1/tasks/{task['task']['task_id']}/settle", reason, word)


def stamp(view: Mapping[str, Any], effect: int = 0) -> dict[str, Any]:
    """What somebody says they have read of an effect."""
    digest = view["effects"][effect]["effect_digest"]
    return {"rev": view["rev"], "effect_digest": digest, "txn_digest": view["txn_digest"]}


def _review(view: Mapping[str, Any], effect: int) -> str:
    return f"/v1/reviews/{view['effects'][effect]['review']['review_id']}"


@dataclass
class World:
    """A running service and those who talk to it."""

    app: FastAPI
    settings: Settings
    http: httpx2.AsyncClient
    clock: Clock

    @property
    def service(self) -> Service:
        """The composition root."""
        service: Service = self.app.state.service
        return service

    async def agent(
        self, name: str = "desk", *, roles: tuple[str, ...] = ("support-agent",), **more: Any
    ) -> Agent:
        """An enrolled agent."""
        key = PrivateKey.generate()
        args = {"name": name, "roles": list(roles), "jwk": key.public.jwk(), **more}
        await self.operator("agent-enroll", args)
        return Agent(name, key, self.http, self.clock)

    async def another_key(self, agent: Agent) -> Agent:
        """The same agent with one more key of its own."""
        key = PrivateKey.generate()
        await self.operator("agent-key-add", {"name": agent.name, "jwk": key.public.jwk()})
        return Agent(agent.name, key, self.http, self.clock)

    async def operator(self, verb: str, args: dict[str, Any]) -> Any:
        """Run an operator's verb, as the socket would."""
        return await self.service.db.write(lambda tx: COMMANDS[verb](tx, self.settings, args))

    async def person(self, sub: str, name: str = "") -> Visitor:
        """Somebody signed in by a one-time link, through the page; called by their own name unless by another."""
        link = (await self.operator("sign-in-link", {"sub": sub, "name": name or sub.title()}))["url"]
        token = link.partition("token=")[2]
        answer = await self.http.post(
            "/sign-in/dev", data={"token": token}, headers={"Origin": self.settings.public_url}
        )
        assert answer.status_code == 303, answer.text
        cookie = re.search(r"countersign_dev=([^;]+)", answer.headers["set-cookie"])
        assert cookie is not None
        session = await self.service.sessions.find(cookie.group(1))
        assert session is not None
        self.http.cookies.clear()
        return Visitor(sub, self.http, cookie.group(1), session.csrf, self.settings.public_url)

    async def manifest_digest(self, tool: str) -> str:
        """The digest of a tool's reviewed manifest."""
        return self.service.active.current.manifests[tool].digest

    def release_of(self, token: str) -> ReleaseClaims:
        """What a release token of this service says."""
        opened = open_token(token, typ=TYP_RELEASE, key_for=self.service.ctx.signer.keys.get)
        return ReleaseClaims.from_claims(opened.claims)

    def receipt_of(self, view: Mapping[str, Any]) -> ReceiptClaims:
        """What the receipt in an answer says."""
        opened = open_token(view["receipt"], typ=TYP_RECEIPT, key_for=self.service.ctx.signer.keys.get)
        return ReceiptClaims.from_claims(opened.claims)

    async def activate(self) -> bool:
        """Look at the bundle's folder, as the job does every other second."""
        return await activate(self.service.ctx)

    async def sweep(self) -> None:
        """What the timers do."""
        for tick in (
            sweep.expire_reviews,
            sweep.send_reminders,
            sweep.escalate_reviews,
            sweep.expire_releases,
            sweep.mark_unreported_unknown,
            sweep.expire_compensations,
            sweep.open_compensation_tasks,
            update_unsatisfiable_reviews,
        ):
            await tick(self.service.ctx)

    async def log(self, txn: str) -> list[tuple[str, dict[str, Any]]]:
        """The log of a transaction: kind and body, by revision and in order."""
        line = table(AuditRow).c
        return await self._rows(line.txn == txn, line.rev, line.audit_id)

    async def audited(self, *kinds: str) -> list[tuple[str, dict[str, Any]]]:
        """The lines of the log of these kinds: kind and body, in order."""
        line = table(AuditRow).c
        return await self._rows(or_(*map(line.kind.like, kinds)), line.audit_id)

    async def _rows(self, which: Any, *order: Any) -> list[tuple[str, dict[str, Any]]]:
        line = table(AuditRow).c
        query = select(line.kind, line.body).where(which).order_by(*order)
        found = await self.service.db.read(lambda conn: conn.execute(query).all())
        return [(kind, json.loads(body)) for kind, body in found]


@functools.cache
def fresh_data() -> Path:
    """A data folder as `policy-service init` leaves it, made once: most of a start's time is spent here."""
    folder = Path(tempfile.mkdtemp(prefix="countersign-fresh-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    make_keys(folder / "keys")
    migrate(url := f"sqlite:///{folder / 'countersign.db'}")
    with Database.open(url) as db:
        reconcile_epoch(db, folder / "keys")
    return folder


@asynccontextmanager
async def running(
    data: Path, bundle: Path = SUPPORT_BUNDLE, *, clock: Clock | None = None, asked: bool = True, **more: Any
) -> AsyncIterator[World]:
    """A service over ``bundle`` with its data in ``data``. Its timers rest: a test sweeps when it wants to; what was
    open when it started has been ``asked`` about.
    """
    quiet = {"public_url": URL, "dev_signin": True, "sweep_s": 3600, "poll_bundle_s": 3600, "watch_s": 60}
    settings = load_settings(data_dir=data, bundle_dir=bundle, **(quiet | more))
    if not settings.data_dir.exists():
        shutil.copytree(fresh_data(), settings.data_dir)
    clock = clock or Clock()
    app = create_app(settings, clock)
    transport = httpx2.ASGITransport(app)
    async with (
        app.router.lifespan_context(app),
        httpx2.AsyncClient(transport=transport, base_url=settings.public_url, timeout=20) as http,
    ):
        world = World(app, settings, http, clock)
        if asked:
            await reevaluate_open_effects(world.service.ctx)
        yield world
