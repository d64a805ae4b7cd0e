"""The commit, as design section 7 numbers it.

    2  check that what live effects read has not changed
    3  submit the staged effects
    4  denied -> undo, raise Denied; review -> with live effects undo at once and raise ReviewPending,
       without them park, wait up to `wait` and raise ReviewPending(parked=True)
    5  verify every release, numbered steps
    6  redeem all, under the attempt the journal already holds; verify the receipt
    7  fire in order (executor.py)
    8  commit the live adapters (live_commit.py), 9 report (reconciliation.py)

Step 1, freezing, is done: a `Plan` is frozen. The commit point is the redemption. An error before it leaves nothing
fired, and the caller (transactions/step.py) undoes the live effects. After it, what did not fire takes the failure path
(failure.py), and recovery/roll_forward.py continues after a crash.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Final

from countersign.commit.attempt import Authority
from countersign.commit.edits import edits_in_force, with_accepted_edits
from countersign.commit.executor import EffectExecutor, ExecutionResult
from countersign.commit.failure import FailurePath
from countersign.commit.live_commit import commit_live
from countersign.commit.plan import Plan, PlannedCall
from countersign.commit.reconciliation import flush_outbox, redeemed_by_us, require_unspent
from countersign.commit.refusals import SPENT, denied_error, effect_states, give_up
from countersign.commit.restored_service import report_to_restored_service
from countersign.commit.review import (
    CommitOptions,
    ProposalResponder,
    describe_outage,
    record_service_state,
    review_pending_error,
    wait_for_review,
)
from countersign.contract.codes import ErrorCode
from countersign.contract.states import Outcome, TxnState
from countersign.contract.verify import VerifiedRelease
from countersign.contract.wire import SubmitRequest, TransactionView
from countersign.errors import (
    AlreadyRedeemed,
    JournalError,
    LeaseLost,
    OverQuota,
    ReleaseRefused,
    ReviewPending,
    ServiceRefused,
    ServiceUnavailable,
)
from countersign.journal import Lease, LocalState, LocalTxn
from countersign.live.work import LiveWork
from countersign.runtime import Engine
from countersign.service.enforcement import FIRE_BY_PASSED, Permit, issuer_of
from countersign.settings import Settings

_RELOAD_CODES: Final = frozenset(
    {
        ErrorCode.NOT_READY.value,
        ErrorCode.SUPERSEDED.value,
        ErrorCode.EXPIRED_TOKEN.value,
        ErrorCode.BAD_TOKEN.value,
    }
)


class Commit:
    """One commit of one frozen list."""

    def __init__(
        self, engine: Engine, lease: Lease, plan: Plan, live: LiveWork | None, terms: CommitOptions
    ) -> None:
        self._engine = engine
        self._lease = lease
        self._plan = plan
        self._live = live
        self._until = engine.clock.monotonic() + terms.wait
        self._claimed = terms.claimed
        self._edits = ProposalResponder(engine, terms.accept_edits)
        self._answering = terms.answering
        self._keeps_approved = terms.keep_approved
        self._sent_back = ""  # the reason of the last refused redemption

    async def run(self) -> dict[str, object]:
        """Submit and follow the service's answer. Returns the tools' results by effect id.

        Raises:
            Stopped, WorldError: nothing fired, except what `ReleaseLapsed` names.
            FireError: with the outcome of every effect.
        """
        if self._live is not None:
            self._live.verify_isolation()  # 2
        asked_at = self._engine.clock.monotonic()
        return await self.go_on(await self._submit(), asked_at)  # 3

    async def go_on(self, view: TransactionView, asked_at: float) -> dict[str, object]:
        """Steps 4 to 9 from any answer of the service. Recovery uses it too."""
        rounds = 0
        while True:
            self._take_over(view)
            if view.state is TxnState.ENDED:
                raise denied_error(self._engine, self._plan, view)
            if view.state in SPENT:
                return await self._fire(await self._spent(view, asked_at))
            if rounds >= self._engine.settings.max_rounds:
                view = await give_up(
                    *(self._engine, self._lease, self._plan, rounds, self._sent_back),
                    keep_approved=self._keeps_approved,
                    see=self._see,
                )
                continue
            if view.state is TxnState.REVIEW:
                answered = await self._edits.answer(view)
                view = await self._ask_people(view) if answered is view else answered
                continue
            rounds += 1
            answer = await self._redeem(view)
            if not isinstance(answer, TransactionView):
                return await self._fire(answer)
            view = answer

    async def _submit(self) -> TransactionView:
        """Step 3. Without live effects the attempt id is included, so that a list released at once is redeemed in
        the same round trip.
        """
        try:
            return await self._engine.service.submit(self._submission())
        except ServiceRefused as refused:
            if refused.problem_code != ErrorCode.OTHER_EPOCH or not await report_to_restored_service(
                self._engine
            ):
                require_unspent(refused, self._plan.txn, self._plan.run_key)
                raise
        try:
            return await self._engine.service.submit(self._submission())
        except ServiceRefused as refused:
            require_unspent(refused, self._plan.txn, self._plan.run_key)
            raise

    def _submission(self) -> SubmitRequest:
        """The list, and the epoch of the service up to which everything was reported. A service in a later epoch
        wants those reports first.
        """
        return SubmitRequest(
            run_key=self._plan.run_key,
            independent=self._plan.independent,
            effects=tuple(call.submitted() for call in self._plan.calls),
            claimed=self._claimed,
            attempt_id=None if self._live else self._plan.attempt_id,
            epoch=self._engine.journal.epochs.reported(issuer_of(self._engine.settings)) or None,
        )

    def _take_over(self, view: TransactionView) -> None:
        """Compare the service's list with ours, adopt an accepted edit that this program agrees to, and record the
        state.
        """
        if view.state is TxnState.ENDED:
            self._see(view)  # nothing of it will fire, so its bytes are not compared
            return
        if view.state in SPENT and view.txn_digest != self._plan.txn_digest:
            return  # ours are journaled before they are redeemed, so it is not ours: `_spent` checks
        if view.txn_digest != self._plan.txn_digest:
            edited = with_accepted_edits(self._plan, view)
            self._see(view)
            self._edits.require_agreed(self._plan, edited, view)
            self._engine.journal.transactions.adopt(
                self._lease, edited.effects, secret=edited.secret, txn_digest=edited.txn_digest
            )
            self._engine.journal.edits.note(self._plan.txn, edits_in_force(view))
            self._plan = edited
        if view.state not in SPENT:
            self._see(view)

    def _see(self, view: TransactionView) -> None:
        parked = view.state is TxnState.REVIEW and self._parks()
        record_service_state(self._engine, self._lease, view, parked=parked)

    # ------------------------------------------------------------------------------------------------ 4

    async def _ask_people(self, view: TransactionView) -> TransactionView:
        """Wait for people as long as the options allow, with no resource held open. The list is already parked, so
        an approval survives a crash of this process or of the service.
        """
        if self._live:
            raise self._pending(view)  # leaving the step undoes the live effects before people answer
        try:
            if self._until <= self._engine.clock.monotonic():  # otherwise the first poll answers questions
                await self._answering.answer(self._engine, view)
            # Keep the lease for one poll with all its retries on a broken connection.
            look_seconds = _look_seconds(self._engine.settings)
            renew = partial(self._engine.journal.leases.renew, self._lease, at_least=look_seconds)
            seen = await wait_for_review(
                self._engine, self._plan.txn, self._until, self._answering, renew, self._concerns
            )
        except (ServiceUnavailable, OverQuota) as away:
            raise self._pending(view, unreached=describe_outage(away)) from away
        if seen is not None and (seen.state is not TxnState.REVIEW or self._concerns(seen)):
            return seen
        if seen is not None:
            self._see(seen)
        raise self._pending(seen or view)

    def _concerns(self, view: TransactionView) -> bool:
        """Whether people did something that this program has to look at, although the review is still open."""
        return view.txn_digest != self._plan.txn_digest or self._edits.concerns(view)

    def _pending(self, view: TransactionView, *, unreached: str = "") -> ReviewPending:
        connected = any(call.tool.given_manifest is not None for call in self._plan.calls)
        return review_pending_error(
            view, self._plan.run_key, parked=self._parks(), connected=connected, unreached=unreached
        )

    def _parks(self) -> bool:
        """Whether another process may fire the list. Not with live effects: only the body can recreate those."""
        return self._plan.live == 0

    # --------------------------------------------------------------------------------------------- 5, 6

    async def _redeem(self, view: TransactionView) -> Permit | TransactionView | None:
        """Request the releases, verify each one and redeem all. Returns the transaction if the policy's answer
        changed.
        """
        self._engine.require_not_stopping()
        try:
            held = await self._engine.service.release(self._plan.txn, view.rev)
            self._plan.require_callable()
            releases = await self._engine.enforcer.releases(
                self._engine.service, self._plan.effects, held.releases
            )
            if self._live is not None:
                self._live.prepare(self._plan.attempt_id)
            asked_at = self._engine.clock.monotonic()
            answer = await self._engine.service.redeem([one.token for one in releases], self._plan.attempt_id)
        except ServiceRefused as refused:
            if refused.problem_code in _RELOAD_CODES:
                self._sent_back = str(refused)
                return await self._engine.service.view(self._plan.txn)
            require_unspent(refused, self._plan.txn, self._plan.run_key)
            raise
        if not answer.redeemed or answer.receipt is None:
            self._sent_back = "the policy changed its answer"
            return answer.transaction
        return await self._permit(answer.receipt, asked_at, releases)

    async def _spent(self, view: TransactionView, asked_at: float) -> Permit | None:
        """The list is redeemed: by this attempt (in the submission, or before a crash), or by another."""
        if not await redeemed_by_us(self._engine, self._plan, view):
            raise AlreadyRedeemed.elsewhere(self._plan.run_key, self._plan.txn, effect_states(view))
        self._plan.require_callable()
        if view.receipt is None or not view.releases:
            return None
        releases = await self._engine.enforcer.releases(
            self._engine.service, self._plan.effects, view.releases
        )
        return await self._permit(view.receipt, asked_at, releases)

    async def _permit(
        self, receipt: str, asked_at: float, releases: Sequence[VerifiedRelease]
    ) -> Permit | None:
        try:
            return await self._engine.enforcer.permit(
                self._engine.service,
                self._plan.effects,
                receipt,
                attempt_id=self._plan.attempt_id,
                txn_digest=self._plan.txn_digest,
                asked_at=asked_at,
                releases=releases,
            )
        except ReleaseRefused as refused:
            if refused.reason != FIRE_BY_PASSED:
                raise
            return None  # the run renews it before its first FIRING

    # ------------------------------------------------------------------------------------------- 7, 8, 9

    async def _fire(self, permit: Permit | None) -> dict[str, object]:
        ids = [effect.effect_id for effect in self._plan.effects]
        self._engine.journal.effect_log.redeemed(self._lease, self._plan.staging, ids)
        finalizer = Finalizer(self._engine, self._lease, self._plan, self._live)
        run = EffectExecutor(self._engine, self._lease, Authority.of(self._plan), permit)
        return await finalizer.fire_and_finish(run, self._plan.calls)


def _look_seconds(settings: Settings) -> float:
    """The longest that one poll of a transaction may take: every try of it, and the pause after it."""
    one = settings.connect_seconds + settings.read_seconds + settings.poll_seconds
    return (settings.retries + 1) * (one + settings.retry_max_seconds) + settings.poll_seconds


class Finalizer:
    """Finishes one transaction after firing."""

    def __init__(self, engine: Engine, lease: Lease, plan: Plan, live: LiveWork | None) -> None:
        self._engine = engine
        self._lease = lease
        self._plan = plan
        self._live = live

    async def fire_and_finish(self, run: EffectExecutor, calls: Sequence[PlannedCall]) -> dict[str, object]:
        """Fire these calls and finish the transaction by the result.

        Raises:
            EffectFailed, PartlyFired, ReleaseLapsed, OutcomeUnknown, LiveCommitFailed: with the outcome of every
                effect.
        """
        result = await self.fire(run, calls)
        if result.stopped is None:
            return await self.complete(result.results)
        if result.outcome is Outcome.UNKNOWN:
            await self._failure().unknown(result.why, result.cause, result.probe_at)
        await self._failure().failed(result)

    async def fire(self, run: EffectExecutor, calls: Sequence[PlannedCall]) -> ExecutionResult:
        """Fire these calls only; the caller handles the result.

        Raises:
            OutcomeUnknown: the journal failed while a call was in flight.
        """
        try:
            return await run.run(calls)
        except LeaseLost:
            raise
        except JournalError as error:
            self._failure().require_none_firing(error)
            raise

    async def complete(self, results: dict[str, object]) -> dict[str, object]:
        """Everything required fired: commit the live adapters and report. The transaction is `ended` if no effect
        fired and no live work was done.
        """
        in_effect = self._plan.live > 0
        if self._live is not None and self._live:
            in_effect = True
            await commit_live(self._engine, self._lease, self._plan, self._live)
        plan, state_of = self._plan, self._engine.journal.transactions.state_of
        states = (state_of(plan.txn, plan.staging, effect.effect_id) for effect in plan.effects)
        in_effect = in_effect or LocalState.FIRED in states
        self._engine.journal.transactions.end(self._lease, LocalTxn.SETTLED if in_effect else LocalTxn.ENDED)
        await flush_outbox(self._engine, self._plan.txn)
        return results

    def _failure(self) -> FailurePath:
        return FailurePath(self._engine, self._lease, self._plan, self._live)
