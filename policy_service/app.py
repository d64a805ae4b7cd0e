"""The composition root: builds every component once, in order, and connects them.

Start: settings, keys, lock, migrations, database, epoch mark, bundle, feed, jobs; then the routes accept requests. A
step that fails stops the start with a sentence and closes what was opened. Stop: streams end, jobs stop, the writer
finishes what it has acknowledged, the epoch mark is written.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager
from datetime import timedelta
from typing import TYPE_CHECKING

import structlog
from fastapi import FastAPI

from countersign.contract import wire
from policy_service import __version__, from_settings, metrics, tracing
from policy_service.audit.feed import Feed
from policy_service.audit.log import SEQUENCER_LEASE, Sequencer, SequencerLimits, highest_index
from policy_service.audit.telemetry import AuditTelemetry
from policy_service.channels.admin.socket import embedded_lock, open_database
from policy_service.channels.http import (
    agent_keys,
    backchannel_logout,
    openapi,
    policies,
    reviews,
    tasks,
    tools,
    transactions,
    wellknown,
)
from policy_service.channels.http import log as log_routes
from policy_service.channels.http.api import Api
from policy_service.channels.http.authentication import Authentication
from policy_service.channels.http.middleware import (
    RefuseDuplicateHeaders,
    RequestMetrics,
    ResponseHeaders,
    UnhandledErrors,
)
from policy_service.channels.http.responses import install_error_handlers
from policy_service.channels.web import routes as web
from policy_service.channels.web.pages import Pages
from policy_service.errors import StartError
from policy_service.facts.allowlist import Allowlist, load_allowlist
from policy_service.health import Health
from policy_service.http_clients import route_from_settings
from policy_service.identity.external_jwt import TrustedIssuers
from policy_service.identity.oidc import SignIn
from policy_service.identity.proofs import Authenticator, Nonces
from policy_service.identity.sessions import Sessions
from policy_service.jobs.delivery import WebhookSender, send_outbox
from policy_service.jobs.epoch_mark import EpochMarkWriter
from policy_service.jobs.health_monitor import HealthMonitor
from policy_service.jobs.scheduler import Job, Scheduler
from policy_service.logs import log_loop_exception, set_up_logs
from policy_service.pap.active_bundle import ActiveBundle, Candidate
from policy_service.queries.context import Context
from policy_service.settings import Settings
from policy_service.storage import advisory_locks
from policy_service.storage.unit_of_work import Clock, utc_now
from policy_service.tokens.keys import read_keys
from policy_service.tokens.signer import Signer
from policy_service.workflow.active_commit import refresh_bundle
from policy_service.workflow.effects.activate import activate, reevaluate_open_effects, refresh_on_request
from policy_service.workflow.expiry import sweep
from policy_service.workflow.expiry.archive import Archiver
from policy_service.workflow.reviews.unsatisfiable import update_unsatisfiable_reviews
from policy_service.workflow.revocation.restore import reconcile_epoch
from policy_service.workflow.shadow import comparison

if TYPE_CHECKING:
    from policy_service.channels.slack.workers import SlackService

log = structlog.get_logger(__name__)

_ROUNDS_MISSED, _ROUND_S = 3, 30.0  # one health check may itself wait for a slow database
_BODIES = (
    wire.AnswerRequest,
    wire.BringKeyRequest,
    wire.CommentRequest,
    wire.CompensateRequest,
    wire.EvaluationRequest,
    wire.RedeemRequest,
    wire.ReleaseRequest,
    wire.RenewRequest,
    wire.ReportRequest,
    wire.SettleRequest,
    wire.SubmitRequest,
    wire.VoteRequest,
    wire.WithdrawRequest,
)
_DESCRIPTION = (
    "Agents stage irreversible effects. Policies in git release harmless ones at once and require people's approval "
    "for the rest. A release is a signed, single-use token bound to the exact bytes."
)


class Service:
    """One running service, built by :func:`create_app`, started and stopped by its lifespan."""

    def __init__(self, settings: Settings, clock: Clock | None = None) -> None:
        self.settings = settings
        self.health = Health(clock or utc_now, _ROUNDS_MISSED * settings.watch_s + _ROUND_S)
        ring = read_keys(settings.key_dir)  # first: without `init`, nothing may be created
        with ExitStack() as opened:  # closed again when a later step fails
            opened.enter_context(embedded_lock(settings))
            # without a clock, the time of this host or of the database server is used
            self.db = open_database(settings, clock=clock)
            opened.callback(self.db.close)
            mark = reconcile_epoch(self.db, settings.key_dir)
            self.mark = EpochMarkWriter(settings.key_dir, mark, self.health.signal("epoch"))
            self.db.refuse_stale_server(self.mark.progress)
            clients = from_settings.client_secrets(settings)
            outside = load_allowlist(settings, clock or utc_now, self.health, from_settings.read_secret_file)
            self.metrics_token = from_settings.metrics_token(settings)
            self.webhook_secret = from_settings.webhook_secret(settings)
            self.webhooks = WebhookSender(settings, self.health)
            route = route_from_settings(settings)
            opened.callback(tracing.start(route=route))
            self._closing = opened.pop_all()
        # An embedded database has one process by its lock: after a crash it resumes its own leases at once.
        self._embedded = self.db.dialect == "sqlite"
        self._holder = "embedded" if self._embedded else secrets.token_hex(8)
        clock = clock or utc_now
        self.active = ActiveBundle(
            from_settings.bundle_source(settings, clock),
            clock,
            signal=self.health.signal("bundle"),
            activation=self.health.signal("activation"),
            outside=outside,
            require_cases=settings.cases_required,
        )
        self._closing.callback(self.active.close)
        # the epoch mark follows the feed, and the feed follows the replica that assigns indexes
        self.feed = Feed(
            self.db,
            poll_s=settings.sequencer_s,
            on_index=self.mark.reached,
            signal=self.health.signal("log", "feed"),
        )
        self.sequencer = Sequencer(
            self.db,
            holder=self._holder,
            pace=SequencerLimits(
                poll_s=settings.sequencer_s,
                batch=settings.sequencer_batch,
                lease=timedelta(seconds=settings.lease_s),
            ),
            on_index=self._indexed,
            signal=self.health.signal("log", "sequencer"),
        )
        self.ctx = Context(
            self.db,
            self.active,
            Signer(ring),
            settings,
            self.feed,
            self.mark.current_epoch,
            self._candidate(outside),
            clock,
        )
        self.slack: SlackService | None = None
        if settings.slack is not None:
            from policy_service.channels.slack.workers import SlackService  # imports Slack's SDK

            self.slack = SlackService(settings, settings.slack, self.ctx, self.health)
        self.authenticator = Authenticator(
            self.db, Nonces(ring.nonce_secret, settings.nonce_period_s), settings, clock
        )
        self.sessions = Sessions(self.db, settings, clock)
        self.trusted_issuers = TrustedIssuers(settings, clock, health=self.health, route=route)
        self.sign_in = SignIn(
            clients, settings.public_url, ring.nonce_secret, clock, health=self.health, route=route
        )
        self.scheduler = Scheduler(self._jobs(), self.health)
        self.watch = HealthMonitor(
            self.db,
            self.health,
            settings,
            scheduler=self.scheduler,
            kid=ring.current.public.kid,
            clock=clock,
        )
        self.db.set_listener(AuditTelemetry(self.active.manifests))
        metrics.SERVICE.labels(__version__).set(1)

    def _candidate(self, outside: Allowlist) -> Candidate | None:
        source = from_settings.shadow_source(self.settings, self.health.now)
        if source is None:
            return None
        candidate = Candidate(source, self.health.signal("shadow"), outside.without_health())
        self._closing.callback(candidate.close)
        return candidate

    async def _indexed(self, _index: int) -> None:
        self.feed.nudge()

    def _jobs(self) -> list[Job]:
        settings, ctx = self.settings, self.ctx
        poll_s = settings.policies_poll_s if settings.policies_repository else settings.poll_bundle_s
        return [
            Job("activate", poll_s, lambda: activate(ctx)),
            *(
                [Job("read_directory", settings.directory_poll_s, self.active.read_directory)]
                if settings.directory
                else []
            ),
            Job("expire_reviews", settings.sweep_s, lambda: sweep.expire_reviews(ctx)),
            Job("remind_people", settings.sweep_s, lambda: sweep.send_reminders(ctx)),
            Job("escalate_reviews", settings.sweep_s, lambda: sweep.escalate_reviews(ctx)),
            Job("expire_releases", settings.sweep_s, lambda: sweep.expire_releases(ctx)),
            Job("doubt_unreported", settings.sweep_s, lambda: sweep.mark_unreported_unknown(ctx)),
            Job("expire_compensations", settings.sweep_s, lambda: sweep.expire_compensations(ctx)),
            Job("ask_for_compensations", settings.sweep_s, lambda: sweep.open_compensation_tasks(ctx)),
            Job("watch_quorums", settings.sweep_s, lambda: update_unsatisfiable_reviews(ctx)),
            *self._shadowing(),
            Job("send_outbox", 1, lambda: send_outbox(ctx)),
            Job("forget", settings.housekeeping_s, lambda: sweep.delete_expired_rows(ctx)),
            Job("archive", settings.housekeeping_s, Archiver(ctx, self._holder).run),
        ]

    def _shadowing(self) -> list[Job]:
        candidate = self.ctx.candidate
        if candidate is None:
            return []
        settings = self.settings
        every_s = settings.policies_poll_s if settings.shadow_ref else settings.poll_bundle_s
        return [
            Job("shadow", every_s, lambda: comparison.shadow_new_decisions(self.ctx, candidate, self._holder))
        ]

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Run everything that needs the event loop. A step that fails stops what was started before it."""
        loaded = await refresh_bundle(self.ctx, starting=True)
        if loaded.active is None:
            raise StartError(f"the bundle {self.active.origin} does not load:\n{loaded.error}")
        asyncio.get_running_loop().set_exception_handler(log_loop_exception)
        async with AsyncExitStack() as started:
            await self.feed.start()
            # in an embedded database, lines have their index when they are committed
            self.db.on_commit(self.feed.nudge if self._embedded else self.sequencer.nudge)
            started.push_async_callback(self._finish_log)
            self.scheduler.start()
            loops = (
                *(() if self._embedded else (self.sequencer.run,)),
                self.feed.run,
                self.mark.run,
                self.watch.run,
                self._ask_about_open,
                lambda: refresh_on_request(self.ctx),
                lambda: self.webhooks.run(self.ctx, self._holder),
                self._run_slack,
            )
            started.push_async_callback(_stop, [asyncio.create_task(work()) for work in loops])
            started.callback(self.scheduler.stop)
            started.callback(self.feed.close)
            log.info(
                "ready",
                url=self.settings.public_url,
                bundle=loaded.active.digest,
                commit=loaded.active.commit,
            )
            yield

    async def _ask_about_open(self) -> None:
        """Evaluate open effects again, because the bundle may have changed while no process ran.

        The start does not wait for it: a slow fact source would delay readiness until a supervisor kills the process.
        """
        try:
            await reevaluate_open_effects(self.ctx)
        except Exception:
            log.exception("job_failed", job="activate")  # the job retries at its next run

    async def _run_slack(self) -> None:
        if self.slack is not None:
            await self.slack.run(self._holder)

    async def _finish_log(self) -> None:
        try:
            if not self._embedded:
                await self.sequencer.number()
                await self.db.write(
                    lambda tx: advisory_locks.release_lease(tx, SEQUENCER_LEASE, self._holder)
                )
            self.mark.reached(await self.db.read(highest_index))
        finally:
            await self.mark.write()

    async def close(self) -> None:
        """Close what was opened."""
        try:
            await self.sign_in.close()
            await self.trusted_issuers.close()
        finally:
            self._closing.close()


async def _stop(tasks: list[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


_ROUTES = (
    transactions.routes,
    transactions.redemption_routes,
    tools.routes,
    reviews.routes,
    reviews.proposal_routes,
    tasks.routes,
    log_routes.routes,
    agent_keys.routes,
    backchannel_logout.routes,
    policies.routes,
    wellknown.routes,
)


def create_app(settings: Settings, clock: Clock | None = None) -> FastAPI:
    """The service as an ASGI application. ``clock`` replaces this host's and the database's.

    Raises:
        StartError: the service cannot start; the sentence says what to do.
    """
    set_up_logs()
    service = Service(settings, clock)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        try:
            async with service.running():
                yield
        finally:
            await service.close()

    app = FastAPI(
        title="Countersign",
        version=__version__,
        description=_DESCRIPTION,
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
        openapi_url="/v1/openapi.json",
        telemetry={"tracing": False, "metrics": False, "logs": False},  # see tracing.py
    )
    app.state.service = service
    install_error_handlers(app)
    app.state.api = Api(
        ctx=service.ctx,
        authentication=Authentication(service.ctx, service.authenticator, service.sessions),
        issuers=service.trusted_issuers,
        sign_in=service.sign_in,
        webhook_secret=service.webhook_secret,
        findings=service.health.findings,
        metrics_token=service.metrics_token,
    )
    for routes in _ROUTES:
        app.routes.extend(routes.routes)  # `include_router` would analyze every route a second time
    if service.slack is not None and service.slack.signatures is not None:
        from policy_service.channels.slack.transports import router

        app.routes.extend(router(service.slack.dispatcher, service.slack.signatures).routes)
    web.install(app, Pages(service.ctx, service.sessions, service.sign_in))
    openapi.install_openapi(app, _BODIES)
    app.add_middleware(UnhandledErrors)
    app.add_middleware(RefuseDuplicateHeaders)
    app.add_middleware(ResponseHeaders, authenticator=service.authenticator)
    app.add_middleware(RequestMetrics)
    return app
