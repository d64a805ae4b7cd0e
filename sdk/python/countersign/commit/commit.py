"""The commit, as design section 7 numbers it.

    2  what live effects read has not moved
    3  submit the staged effects
    4  denied -> undo, raise Denied; review -> with live effects undo at once and raise ReviewPending,
       without park, wait up to `wait` and raise ReviewPending(parked=True)
    5  verify every release, numbered steps
    6  redeem all, under the attempt the journal already holds; verify the receipt
    7  fire in order (firing.py)
    8  commit the live adapters, 9 report (settling.py)

Step 1, freezing, has happened: a `Plan` is frozen. The commit point is the redemption. Whatever raises before
it leaves nothing fired, and the caller (transactions/step.py) undoes the live effects; after it, settling.py and
recovery/roll_forward.py take over.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, Final

from countersign.commit.attempt import Authority
from countersign.commit.executor import EffectExecutor
from countersign.commit.finalizer import Finalizer
from countersign.commit.plan import Plan
from countersign.commit.reconciliation import redeemed_by_us, report_to_restored_service
from countersign.commit.review import (
    CommitOptions,
    ProposalResponder,
    describe_outage,
    edits_in_force,
    record_service_state,
    review_pending_error,
    wait_for_review,
)
from countersign.contract.codes import DenyCode, ErrorCode
from countersign.contract.states import TxnState
from countersign.contract.verify import VerifiedRelease
from countersign.contract.wire import SubmitRequest, TransactionView
from countersign.errors import (
    AlreadyRedeemed,
    Denied,
    OverQuota,
    ReleaseLapsed,
    ReleaseRefused,
    ReviewPending,
    ServiceRefused,
    ServiceUnavailable,
)
from countersign.journal import Lease, LocalTxn
from countersign.live.work import LiveWork
from countersign.runtime import Engine
from countersign.service.enforcement import FIRE_BY_PASSED, Permit

_SPENT: Final = frozenset({TxnState.REDEEMED, TxnState.SETTLED, TxnState.UNSETTLED})
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
        self, engine: Engine, lease: Lease, plan: Plan, live: LiveWork, terms: CommitOptions
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
        self._sent_back = ""  # why the last redemption was

    async def run(self) -> dict[str, object]:
        """Submit, and go on as the answer says. Answers the tools' results by effect id.

        Raises:
            Stopped, WorldError: nothing fired, but for what `ReleaseLapsed` names.
            FireError: with what stands.
        """
        self._live.verify_isolation()  # 2
        asked_at = self._engine.clock.monotonic()
        return await self.go_on(await self._submit(), asked_at)  # 3

    async def go_on(self, view: TransactionView, asked_at: float) -> dict[str, object]:
        """Steps 4 to 9 from any answer of the service; used by recovery too."""
        rounds = 0
        while True:
            self._take_over(view)
            if view.state is TxnState.ENDED:
                raise self._denied(view)
            if view.state in _SPENT:
                return await self._fire(await self._spent(view, asked_at))
            if rounds >= self._engine.settings.max_rounds:
                view = await self._give_up(rounds)
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
        """Step 3. Without live effects the attempt goes along: released at once is redeemed in the same round
        trip.
        """
        try:
            return await self._engine.service.submit(self._submission())
        except ServiceRefused as refused:
            if refused.problem_code != ErrorCode.OTHER_EPOCH or not await report_to_restored_service(
                self._engine
            ):
                self._require_unspent(refused)
                raise
        try:
            return await self._engine.service.submit(self._submission())
        except ServiceRefused as refused:
            self._require_unspent(refused)
            raise

    def _submission(self) -> SubmitRequest:
        """The list, and which epoch of the service we have told all we know: a later one wants to hear it first."""
        return SubmitRequest(
            run_key=self._plan.run_key,
            independent=self._plan.independent,
            effects=tuple(call.submitted() for call in self._plan.calls),
            claimed=self._claimed,
            attempt_id=None if self._live else self._plan.attempt_id,
            epoch=self._engine.journal.epochs.told(self._engine.settings.iss) or None,
        )

    def _take_over(self, view: TransactionView) -> None:
        """Compare what the service holds with what we staged, adopt an accepted edit that this program takes, note
        where it stands.
        """
        if view.state is TxnState.ENDED:
            self._see(view)  # nothing of it will fire, so its bytes need not be compared
            return
        if view.state in _SPENT and view.txn_digest != self._plan.txn_digest:
            return  # ours are in the journal before they are spent, so it is not ours: `_spent` finds out
        edited = self._plan.with_accepted_edits(view)
        if edited is not self._plan:
            self._see(view)
            self._edits.require_agreed(self._plan, edited, view)
            self._engine.journal.transactions.adopt(
                self._lease, edited.effects, secret=edited.secret, txn_digest=edited.txn_digest
            )
            self._engine.journal.edits.note(self._plan.txn, edits_in_force(view))
            self._plan = edited
        if view.state not in _SPENT:
            self._see(view)

    def _see(self, view: TransactionView) -> None:
        parked = view.state is TxnState.REVIEW and self._parks()
        record_service_state(self._engine, self._lease, view, parked=parked)

    # ------------------------------------------------------------------------------------------------ 4

    async def _ask_people(self, view: TransactionView) -> TransactionView:
        """Wait as long as we were told to, with nothing held open. It is parked already: whatever becomes of this
        process or of the service meanwhile, what people approve is not dropped.
        """
        if self._live:
            raise self._pending(view)  # leaving the step undoes them, before anybody answers
        try:
            if self._until <= self._engine.clock.monotonic():  # whoever waits hears of it with the first look
                await self._answering.answer(self._engine, view)
            # Keep the lease as long as one look may take, with all its retries on a dead line.
            look_seconds = self._engine.settings.look_seconds
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
        """Whether what people did is for this program to look at, although they are still asked."""
        return view.txn_digest != self._plan.txn_digest or self._edits.concerns(view)

    def _pending(self, view: TransactionView, *, unreached: str = "") -> ReviewPending:
        connected = any(call.tool.given_manifest is not None for call in self._plan.calls)
        return review_pending_error(
            view, self._plan.run_key, parked=self._parks(), connected=connected, unreached=unreached
        )

    def _parks(self) -> bool:
        """Whether another process may fire the list: not what was staged beside live effects, which only the body can
        bring back.
        """
        return self._plan.live == 0

    def _denied(self, view: TransactionView) -> Denied:
        denied = Denied.of(view, self._plan.run_key)
        for reason in denied.reasons:
            if reason.code in {DenyCode.TOOL_CHANGED.value, DenyCode.UNKNOWN_TOOL.value}:
                self._engine.manifests.forget(reason.tool)
        return denied

    # --------------------------------------------------------------------------------------------- 5, 6

    async def _redeem(self, view: TransactionView) -> Permit | TransactionView | None:
        """Ask for releases, verify every one, redeem all; or answer how things stand if the policy says
        otherwise.
        """
        self._engine.require_not_stopping()
        try:
            held = await self._engine.service.release(self._plan.txn, view.rev)
            self._plan.require_callable()
            releases = await self._engine.enforcer.releases(
                self._engine.service, self._plan.effects, held.releases
            )
            self._live.prepare(self._plan.attempt_id)
            asked_at = self._engine.clock.monotonic()
            answer = await self._engine.service.redeem([one.token for one in releases], self._plan.attempt_id)
        except ServiceRefused as refused:
            if refused.problem_code in _RELOAD_CODES:
                self._sent_back = str(refused)
                return await self._engine.service.view(self._plan.txn)
            self._require_unspent(refused)
            raise
        if not answer.redeemed or answer.receipt is None:
            self._sent_back = "the policy changed its answer"
            return answer.transaction
        return await self._permit(answer.receipt, asked_at, releases)

    async def _give_up(self, rounds: int) -> TransactionView:
        """Take it back before its caller is told that nothing stands: what stays approved, or people are still asked
        about, somebody would fire later. A worker has no caller who asks for it again, so it leaves it approved.
        Answers how it stands where it was redeemed all the same.

        Raises:
            ReleaseLapsed: with whether it may still happen.
        """
        key, txn = self._plan.run_key, self._plan.txn
        why = f"it was sent back {rounds} times, the last time because {self._sent_back}"
        if self._keeps_approved:
            raise ReleaseLapsed(key, txn, why, may_fire=True)
        try:
            view = await self._withdrawn(f"its agent could not redeem it in {rounds} tries")
        except (ServiceRefused, ServiceUnavailable) as error:
            why = f"{why}; and it could not be withdrawn: {error}"
            raise ReleaseLapsed(key, txn, why, may_fire=True) from error
        if view.state in _SPENT:
            return view
        self._see(view)
        if view.state is TxnState.ENDED:
            self._engine.journal.transactions.end(self._lease, LocalTxn.ENDED, why)
        raise ReleaseLapsed(key, txn, why, may_fire=view.state is not TxnState.ENDED)

    async def _withdrawn(self, reason: str) -> TransactionView:
        """How it stands once the service has been told that nobody wants it any more."""
        try:
            return await self._engine.service.withdraw(self._plan.txn, reason)
        except ServiceRefused as refused:
            if refused.problem_code != ErrorCode.ALREADY_REDEEMED:
                raise
            return await self._engine.service.view(self._plan.txn)

    async def _spent(self, view: TransactionView, asked_at: float) -> Permit | None:
        """Redeemed: by us in the same round trip as the submission or before a crash, or by somebody else."""
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
            return None  # the run asks for a fresh one before its first FIRING

    # ------------------------------------------------------------------------------------------- 7, 8, 9

    async def _fire(self, permit: Permit | None) -> dict[str, object]:
        ids = [effect.effect_id for effect in self._plan.effects]
        self._engine.journal.firing.redeemed(self._lease, self._plan.staging, ids)
        ending = Finalizer(self._engine, self._lease, self._plan, self._live)
        run = EffectExecutor(self._engine, self._lease, Authority.of(self._plan), permit)
        return await ending.around(run, self._plan.calls)

    def _require_unspent(self, refused: ServiceRefused) -> None:
        """Tell a refusal that means "somebody else has redeemed it" as that."""
        if refused.problem_code == ErrorCode.ALREADY_REDEEMED:
            what = refused.detail.partition(";")[0]  # what to do about it is told by where it was spent
            raise AlreadyRedeemed.elsewhere(
                self._plan.run_key, self._plan.txn, _states_in_problem(refused.extras), what
            ) from refused


def effect_states(view: TransactionView) -> list[str]:
    """What is known of each effect of a spent transaction."""
    return [one.state.value for one in view.effects]


def _states_in_problem(problem: dict[str, Any]) -> list[str]:
    """The same of a refusal, as far as it says so."""
    effects = problem.get("effects")
    if not isinstance(effects, list) or not all(isinstance(one, dict) for one in effects):
        return []
    return [str(one.get("state")) for one in effects]
