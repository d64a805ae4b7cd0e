"""A small policy service: the native API in memory, with real signatures and a policy of a few lines.

It keeps the rules a client can observe: revisions, one redemption for each effect, attempts, renewals,
outcomes at most once, compensations. It has no Cedar, no people and no disk; a test approves by calling
`approve`. `faults` lets a test lose a request or an answer. The HTTP face is `fakes/service_http.py`.
"""

from __future__ import annotations

import itertools
import secrets
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from countersign.contract import (
    Compensation,
    ContractError,
    DecisionClaims,
    DenyCode,
    Effect,
    EffectDetail,
    EffectState,
    ErrorCode,
    Mode,
    Outcome,
    PrivateKey,
    PublicKey,
    ReceiptClaims,
    ReceiptEffect,
    ReleaseClaims,
    Resource,
    ToolManifest,
    TxnState,
    Verdict,
    call_key,
    canonicalize,
    compensation_args,
    compensation_call_key,
    effect_id,
    independent_txn_id,
    require_transition,
    sign,
    txn_digest,
    txn_id,
)
from countersign.contract.jws import TYP_RECEIPT, TYP_RELEASE
from countersign.contract.wire import (
    CompensationRef,
    CompensationView,
    DecisionView,
    EffectView,
    EvaluatedEffect,
    EvaluationView,
    Need,
    OutcomeView,
    Reason,
    RedemptionView,
    ReportedOutcome,
    ReviewSummary,
    SubmitRequest,
    SubmittedEffect,
    TransactionView,
)

E, T = EffectState, TxnState
WAITING = {E.REVIEW, E.RELEASED}
ASKED = Need(gates=("large",), groups=("finance",), quorum=1, have=0)
VERDICTS = {Verdict.RELEASE: E.RELEASED, Verdict.REVIEW: E.REVIEW, Verdict.DENY: E.DENIED}
RELEASE_SECONDS = 120
FIRE_SECONDS = 30

Policy = Callable[[str, dict[str, Any]], "Verdict | tuple[Verdict, Reason]"]


class Refused(Exception):
    """A problem the HTTP face turns into problem details."""

    def __init__(self, status: int, code: ErrorCode, detail: str = "no", **extras: Any) -> None:
        super().__init__(detail)
        self.status, self.code, self.detail, self.extras = status, code, detail, extras


@dataclass
class Held:
    """One effect of one revision."""

    effect: Effect
    state: EffectState
    verdict: Verdict
    reasons: tuple[Reason, ...] = ()
    votes: tuple[str, ...] = ()
    jtis: set[str] = field(default_factory=set)
    outcome: Outcome | None = None
    error: str | None = None
    result: Any = None
    compensation: Held | None = None
    attempt: str | None = None  # of a compensation
    may_fail: bool = False


@dataclass
class Revision:
    """One list of effects under a transaction id."""

    txn: str
    rev: int
    agent: str
    run_key: str
    held: list[Held]
    attempt: str | None = None
    denied_by_person: bool = False

    @property
    def list_key(self) -> list[tuple[str, str]]:
        return [(one.effect.call_key, one.effect.tool_digest) for one in self.held]

    @property
    def digest(self) -> str:
        return txn_digest(effect_digests=[one.effect.digest for one in self.held])

    def already_redeemed(self) -> Refused:
        """What the service says then, with the outcome known so far."""
        effects = [{"effect_id": one.effect.effect_id, "state": one.state.value} for one in self.held]
        return Refused(409, ErrorCode.ALREADY_REDEEMED, state=self.state.value, effects=effects)

    @property
    def state(self) -> TxnState:
        states = {one.state for one in self.held if not (one.may_fail and one.state is E.FAILED)}
        if E.REDEEMED in states:
            return T.REDEEMED
        if states & {E.UNKNOWN, E.COMPENSATING, E.COMPENSATION_FAILED}:
            return T.UNSETTLED
        if E.FIRED in states:
            return T.UNSETTLED if states - {E.FIRED, E.COMPENSATED} else T.SETTLED
        if E.COMPENSATED in states:
            return T.SETTLED
        if E.REVIEW in states:
            return T.REVIEW
        return T.READY if E.RELEASED in states else T.ENDED


def amounts(tool: str, args: dict[str, Any]) -> Verdict | tuple[Verdict, Reason]:
    """The policy: up to 50.00 by itself, up to 5,000.00 after a question, never above."""
    cents = args.get("amount_cents", 0)
    if cents > 500_000:
        text = "refunds above 5,000.00 are not made here"
        return Verdict.DENY, Reason(
            code=DenyCode.FORBIDDEN_BY_POLICY, text=text, policy="never-huge", advice="split it with finance"
        )
    return Verdict.REVIEW if cents > 5_000 else Verdict.RELEASE


def _members(of: object, names: str) -> dict[str, Any]:
    return {name: getattr(of, name) for name in names.split()}


class FakeService:
    """The service's mind. Every verb takes the caller's agent name and key id."""

    def __init__(self, *, iss: str = "http://127.0.0.1:8420", now: Callable[[], float] | None = None) -> None:
        self.iss = iss
        self.key = PrivateKey.generate()
        self.published: list[PublicKey] = [self.key.public]
        self.epoch = 1
        self.policy: Policy = amounts
        self.assurance = "oidc"
        self.fire_seconds = FIRE_SECONDS
        self.lies: Callable[[str, dict[str, Any]], dict[str, Any]] = lambda _, claims: claims
        self.manifests: dict[str, ToolManifest] = {}
        self.agents: dict[str, tuple[str, PublicKey]] = {}
        self.revisions: dict[str, list[Revision]] = {}
        self.attempts: dict[str, Revision] = {}
        self.changed = threading.Condition(threading.RLock())
        self._now = now or (lambda: datetime.now(UTC).timestamp())
        self._ids = itertools.count(1)
        self._keys: dict[tuple[str, str], tuple[bytes, str]] = {}

    def sign(self, claims: dict[str, Any], typ: str) -> str:
        return sign(self.lies(typ, claims), typ=typ, key=self.key)

    # ------------------------------------------------------------------------------------ operators and people

    def enroll(self, agent: str, key: PublicKey) -> None:
        self.agents[key.kid] = (agent, key)

    def review(self, manifests: Iterable[ToolManifest]) -> None:
        """Put manifests into the bundle."""
        self.manifests |= {one.tool: one for one in manifests}

    def approve(self, txn: str) -> None:
        with self.changed:
            for one in self.latest(txn).held:
                if one.state is E.REVIEW:
                    one.votes = (f"vote-{next(self._ids)}",)
                    self._move(one, E.RELEASED)
            self.changed.notify_all()

    def deny(self, txn: str, reason: str = "not today") -> None:
        with self.changed:
            revision = self.latest(txn)
            revision.denied_by_person = True
            first = next(one for one in revision.held if one.state in WAITING)
            self._deny(revision, first, Reason(code=DenyCode.DENIED_BY_PERSON, text=reason))
            self.changed.notify_all()

    def edit(self, txn: str, position: int, args: dict[str, Any]) -> None:
        """A person changes the args of one waiting effect; the list becomes a new revision."""
        with self.changed:
            old = self.latest(txn)
            held = [replace(one, jtis=set(), votes=()) for one in old.held]
            manifest = self.manifests[held[position].effect.tool]
            held[position].effect = replace(
                held[position].effect, args_bytes=canonicalize(args), resource=manifest.resource_of(args)
            )
            self.revisions[txn].append(replace(old, rev=old.rev + 1, held=held))

    def settle(self, txn: str, effect: str, outcome: EffectState) -> None:
        """A person settles an unknown."""
        self._move(self._held(self.latest(txn), effect), outcome)

    def _revisions(self) -> list[Revision]:
        return [one for revisions in self.revisions.values() for one in revisions]

    def latest(self, txn: str) -> Revision:
        if txn not in self.revisions:
            raise Refused(404, ErrorCode.NOT_FOUND, f"no transaction {txn[:12]}")
        return self.revisions[txn][-1]

    # --------------------------------------------------------------------------------------------- agents' verbs

    def submit(self, agent: str, kid: str, request: SubmitRequest, key: str, body: bytes) -> TransactionView:
        known = self._keys.get((agent, key))
        if known is not None:
            if known[0] != body:
                raise Refused(422, ErrorCode.IDEMPOTENCY_KEY_REUSED)
            return self.view(self.latest(known[1]))
        txn = self._txn(agent, request)
        key, effects = request.run_key, request.effects
        fresh = [self._stage(agent, key, txn, seq, one) for seq, one in enumerate(effects, 1)]
        revision = self._revise(txn, agent, request.run_key, fresh)
        self._keys[(agent, key)] = (body, txn)
        created = revision.held is fresh
        if request.attempt_id and created and revision.state is T.READY:
            for one in revision.held:
                one.jtis.clear()
            tokens = self._mint(revision, kid)
            self._spend(revision, request.attempt_id)
            return self.view(revision, releases=tokens, receipt=self._receipt(revision, kid))
        return self.view(revision)

    def wait(self, txn: str, seconds: float) -> TransactionView:
        with self.changed:
            self.changed.wait_for(lambda: self.latest(txn).state is not T.REVIEW, timeout=seconds)
            return self.view(self.latest(txn))

    def withdraw(self, txn: str, why: str | None = None) -> TransactionView:
        revision = self.latest(txn)
        if revision.attempt is not None:
            raise revision.already_redeemed()
        for one in revision.held:
            if one.state in WAITING:
                self._move(one, E.WITHDRAWN)
                reason = Reason(code=DenyCode.WITHDRAWN, text=f"it was taken back: {why}")
                one.reasons = () if why is None else (reason,)
        return self.view(revision)

    def release(self, txn: str, rev: int, kid: str) -> TransactionView:
        revision = self.latest(txn)
        if revision.rev != rev:
            raise Refused(409, ErrorCode.SUPERSEDED)
        if revision.state is not T.READY:
            raise Refused(409, ErrorCode.NOT_READY)
        return self.view(revision, releases=self._mint(revision, kid))

    def redeem(self, jtis: list[str], attempt: str, kid: str) -> RedemptionView:
        if attempt in self.attempts:
            revision = self.attempts[attempt]
            return self._redemption(attempt, revision, self._receipt(revision, kid))
        compensation = self._compensation_of(jtis[0])
        if compensation is not None:
            return self._redeem_compensation(*compensation, attempt, kid)
        revision = next((r for r in self._revisions() if [self._jti_of(r, j) for j in jtis] == r.held), None)
        if revision is None:
            raise Refused(400, ErrorCode.BAD_TOKEN)
        if revision.attempt is not None:
            raise revision.already_redeemed()
        newest = self.latest(revision.txn)
        if revision is not newest or revision.state is not T.READY or not self._still(revision):
            return self._redemption(attempt, newest, None)
        self._spend(revision, attempt)
        return self._redemption(attempt, revision, self._receipt(revision, kid))

    def renew(self, attempt: str, effect_ids: list[str], kid: str) -> RedemptionView:
        revision = self.attempts.get(attempt)
        if revision is None:
            raise Refused(404, ErrorCode.UNKNOWN_ATTEMPT)
        compensation = next((c for c in self._compensations(revision) if c.attempt == attempt), None)
        held = [compensation] if compensation else [self._held(revision, one) for one in effect_ids]
        asked = [(one.state, self._ask(one.effect)[0]) for one in held]
        allowed = all(state is E.REDEEMED and verdict is not Verdict.DENY for state, verdict in asked)
        receipt = self._receipt(revision, kid, held, attempt, renewed=True) if allowed else None
        return self._redemption(attempt, revision, receipt)

    def report(self, attempt: str, outcomes: Iterable[ReportedOutcome]) -> TransactionView:
        revision = self.attempts.get(attempt)
        if revision is None:
            raise Refused(404, ErrorCode.UNKNOWN_ATTEMPT)
        for said in outcomes:
            one = self._reported(revision, said.effect_id)
            if one.outcome is not None and one.outcome is not said.outcome and one.state is not E.UNKNOWN:
                raise Refused(409, ErrorCode.OUTCOME_CONFLICT)
            if one.outcome is said.outcome:
                continue
            one.outcome, one.result, one.error = said.outcome, said.result, said.error
            self._move(one, E(said.outcome.value))
            self._compensated(revision, one)
        return self.view(revision)

    def compensate(self, txn: str, effect: str, kid: str) -> CompensationView:
        revision = self.latest(txn)
        forward = self._held(revision, effect)
        if forward.compensation is None:
            if forward.state is not E.FIRED:
                raise Refused(409, ErrorCode.ILLEGAL_STATE, "only what fired is taken back")
            try:
                forward.compensation = self._plan_compensation(revision, forward)
            except ContractError as error:
                self.give_up(txn, effect)
                why = f"the compensation of {forward.effect.tool} cannot be built: {error}"
                raise Refused(409, ErrorCode.ILLEGAL_STATE, why) from error
            self._move(forward, E.COMPENSATING)
        held = forward.compensation
        if held.state is E.DENIED:
            self._move_if(forward, E.COMPENSATION_FAILED)
        token = self._token(revision, held, kid, compensates=effect) if held.state is E.RELEASED else None
        return CompensationView(effect=self._effect_view(held), release=token)

    def evaluate(self, effects: Iterable[SubmittedEffect]) -> EvaluationView:
        decided = []
        for one in effects:
            verdict, reasons = self._decide(one.tool, one.tool_digest, one.args)
            needs = (ASKED,) if verdict is Verdict.REVIEW else ()
            decision = self._decision(verdict, reasons)
            decided.append(EvaluatedEffect(tool=one.tool, decision=decision, needs=needs))
        return EvaluationView(effects=tuple(decided))

    # ------------------------------------------------------------------------------------------------- insides

    def _txn(self, agent: str, request: SubmitRequest) -> str:
        if not request.independent:
            return txn_id(agent=agent, run_key=request.run_key)
        one = request.effects[0]
        return independent_txn_id(
            agent=agent, run_key=request.run_key, call_key=self._call_key(agent, request.run_key, one)
        )

    @staticmethod
    def _call_key(agent: str, run_key: str, one: SubmittedEffect) -> str:
        return call_key(agent=agent, run_key=run_key, tool=one.tool, args=one.args, n=one.n)

    def _stage(self, agent: str, run_key: str, txn: str, seq: int, one: SubmittedEffect) -> Held:
        key = self._call_key(agent, run_key, one)
        if one.call_key not in {None, key}:
            raise Refused(422, ErrorCode.CALL_KEY_MISMATCH)
        manifest = self.manifests.get(one.tool)
        resource = manifest.resource_of(one.args) if manifest else Resource("Unknown", "unknown")
        if manifest and one.resource not in {None, resource}:
            raise Refused(422, ErrorCode.RESOURCE_MISMATCH)
        named = {"agent": agent, "txn": txn, "call_key": key, "seq": seq, "resource": resource}
        undo = self._compensation_rule(manifest)
        effect = Effect.stage(**named, **_members(one, "tool tool_digest args"), compensation=undo)
        verdict, reasons = self._decide(one.tool, one.tool_digest, one.args)
        may_fail = manifest is not None and manifest.may_fail
        return Held(effect, VERDICTS[verdict], verdict, reasons, may_fail=may_fail)

    def _compensation_rule(self, manifest: ToolManifest | None) -> Compensation | None:
        rule = manifest.compensation if manifest else None
        if rule is None:
            return None
        return Compensation(rule.tool, self.manifests[rule.tool].digest, rule.map)

    def _decide(self, tool: str, digest: str, args: dict[str, Any]) -> tuple[Verdict, tuple[Reason, ...]]:
        manifest = self.manifests.get(tool)
        if manifest is None:
            advice = "countersign tools export, then have the manifest reviewed"
            return Verdict.DENY, (
                Reason(code=DenyCode.UNKNOWN_TOOL, text=f"{tool} has no reviewed manifest", advice=advice),
            )
        if manifest.digest != digest:
            return Verdict.DENY, (Reason(code=DenyCode.TOOL_CHANGED, text=f"{tool} is another one now"),)
        answer = self.policy(tool, args)
        return (answer[0], (answer[1],)) if isinstance(answer, tuple) else (answer, ())

    def _ask(self, effect: Effect) -> tuple[Verdict, tuple[Reason, ...]]:
        return self._decide(effect.tool, effect.tool_digest, effect.args)

    def _revise(self, txn: str, agent: str, run_key: str, fresh: list[Held]) -> Revision:
        before = self.revisions.setdefault(txn, [])
        new = Revision(txn, len(before) + 1, agent, run_key, fresh)
        if before:
            old = before[-1]
            same = old.list_key == new.list_key
            if old.attempt is not None and not same:
                raise old.already_redeemed()
            if same and (old.attempt is not None or old.state is not T.ENDED or old.denied_by_person):
                return old
            for one in old.held:
                if one.state in WAITING:
                    self._move(one, E.WITHDRAWN)
        before.append(new)
        denied = next((one for one in fresh if one.state is E.DENIED), None)
        if denied is not None:
            self._withdraw_siblings(new, denied)
        return new

    def _deny(self, revision: Revision, one: Held, reason: Reason) -> None:
        one.reasons = (reason,)
        self._move(one, E.DENIED)
        self._withdraw_siblings(revision, one)

    def _withdraw_siblings(self, revision: Revision, denied: Held) -> None:
        for one in revision.held:
            if one is not denied and one.state in WAITING:
                self._move(one, E.WITHDRAWN)
                one.reasons = (Reason(code=DenyCode.SIBLING, text="another effect was denied"),)

    def _still(self, revision: Revision) -> bool:
        """Ask the policy again at redemption."""
        for one in revision.held:
            verdict, reasons = self._ask(one.effect)
            if verdict is Verdict.DENY:
                self._deny(revision, one, reasons[0])
                return False
            if verdict is Verdict.REVIEW and not one.votes:
                self._move(one, E.REVIEW)
                return False
        return True

    def _spend(self, revision: Revision, attempt: str) -> None:
        revision.attempt = attempt
        self.attempts[attempt] = revision
        for one in revision.held:
            self._move(one, E.REDEEMED)

    def _mint(self, revision: Revision, kid: str) -> list[str]:
        return [self._token(revision, one, kid) for one in revision.held]

    def _token(self, revision: Revision, one: Held, kid: str, *, compensates: str | None = None) -> str:
        now, jti = int(self._now()), secrets.token_urlsafe(16)
        one.jtis.add(jti)
        claims = ReleaseClaims(
            **self._issued(revision, kid),
            nbf=now,
            exp=now + RELEASE_SECONDS,
            jti=jti,
            detail=EffectDetail.of(one.effect),
            decision=self._decision_claims(one),
            kind="compensate" if compensates else "effect",
            compensates=compensates,
        )
        return self.sign(claims.to_claims(), TYP_RELEASE)

    def _issued(self, revision: Revision, kid: str) -> dict[str, Any]:
        """The claims that releases and receipts share."""
        party = dict.fromkeys(("aud", "sub"), revision.agent)
        of = {"txn": revision.txn, "txn_digest": revision.digest, "cnf_jkt": kid}
        return {"iss": self.iss, "iat": int(self._now()), "epoch": self.epoch, **party, **of}

    def _decision_claims(self, one: Held) -> DecisionClaims:
        return DecisionClaims(
            id="decision-1",
            mode=Mode.REVIEW if one.votes else Mode.AUTO,
            commit="fake",
            bundle="fake",
            policies=("small",),
            votes=one.votes,
            rev=1,
            assurance=self.assurance if one.votes else "none",  # type: ignore[arg-type]
        )

    def _receipt(
        self,
        revision: Revision,
        kid: str,
        held: Sequence[Held] = (),
        attempt: str = "",
        renewed: bool = False,
    ) -> str:
        now = int(self._now())
        compensating = bool(held) and held[0] not in revision.held
        effects = []
        for one in held or revision.held:
            jti = None if renewed else next(iter(one.jtis), None)
            effects.append(ReceiptEffect(one.effect.effect_id, one.effect.digest, jti))
        fire_by, kind = now + self.fire_seconds, "compensate" if compensating else "effect"
        more = {"attempt": attempt or revision.attempt or "", "effects": tuple(effects), "kind": kind}
        claims = ReceiptClaims(**self._issued(revision, kid), **more, fire_by=fire_by)
        return self.sign(claims.to_claims(), TYP_RECEIPT)

    def _redemption(self, attempt: str, revision: Revision, receipt: str | None) -> RedemptionView:
        view = self.view(revision)
        spent = receipt is not None
        return RedemptionView(attempt_id=attempt, redeemed=spent, receipt=receipt, transaction=view)

    def _jti_of(self, revision: Revision, jti: str) -> Held | None:
        found = next((one for one in revision.held if jti in one.jtis), None)
        if found is not None:
            found.jtis = {jti}  # the one that is spent
        return found

    # --------------------------------------------------------------------------------------------- compensation

    def _plan_compensation(self, revision: Revision, forward: Held) -> Held:
        rule = forward.effect.compensation
        if rule is None:
            raise Refused(409, ErrorCode.ILLEGAL_STATE, "it has no compensation")
        args = compensation_args(rule.map, args=forward.effect.args, result=forward.result)
        key = compensation_call_key(effect_id=forward.effect.effect_id, tool=rule.tool)
        tool, named = self.manifests[rule.tool], effect_id(txn=revision.txn, call_key=key)
        effect = Effect(
            **_members(revision, "agent txn"), **_members(rule, "tool tool_digest"), effect_id=named, call_key=key,
            seq=forward.effect.seq, resource=tool.resource_of(args), args_bytes=canonicalize(args),
        )  # fmt: skip
        verdict, reasons = self._ask(effect)
        return Held(effect, VERDICTS[verdict], verdict, reasons)

    def give_up(self, txn: str, effect: str) -> None:
        """No call can take it back: it is a task for a person."""
        forward = self._held(self.latest(txn), effect)
        self._move(forward, E.COMPENSATING)
        self._move(forward, E.COMPENSATION_FAILED)

    def approve_compensation(self, txn: str, effect: str) -> None:
        held = self._held(self.latest(txn), effect).compensation
        assert held is not None
        held.votes = ("vote-c",)
        self._move(held, E.RELEASED)

    def settle_compensation(self, txn: str, effect: str) -> None:
        """A person has found that it did take the effect back."""
        forward = self._held(self.latest(txn), effect)
        assert forward.compensation is not None
        self._move(forward.compensation, E.FIRED)
        self._move(forward, E.COMPENSATED)

    def _compensations(self, revision: Revision) -> list[Held]:
        return [one.compensation for one in revision.held if one.compensation is not None]

    def _compensation_of(self, jti: str) -> tuple[Revision, Held] | None:
        for revision in self._revisions():
            for held in self._compensations(revision):
                if jti in held.jtis:
                    held.jtis = {jti}  # the one that is spent
                    return revision, held
        return None

    def _redeem_compensation(self, revision: Revision, held: Held, attempt: str, kid: str) -> RedemptionView:
        if held.attempt is not None:
            raise Refused(409, ErrorCode.ALREADY_REDEEMED)
        held.attempt = attempt
        self.attempts[attempt] = revision
        self._move(held, E.REDEEMED)
        return self._redemption(attempt, revision, self._receipt(revision, kid, [held], attempt))

    def _reported(self, revision: Revision, effect: str) -> Held:
        for one in [*revision.held, *self._compensations(revision)]:
            if one.effect.effect_id == effect:
                return one
        raise Refused(404, ErrorCode.NOT_FOUND)

    def _compensated(self, revision: Revision, one: Held) -> None:
        forward = next((f for f in revision.held if f.compensation is one), None)
        if forward is None or one.state is E.UNKNOWN:
            return
        self._move(forward, E.COMPENSATED if one.state is E.FIRED else E.COMPENSATION_FAILED)

    # --------------------------------------------------------------------------------------------------- views

    def _held(self, revision: Revision, effect: str) -> Held:
        found = next((one for one in revision.held if one.effect.effect_id == effect), None)
        if found is None:
            raise Refused(404, ErrorCode.NOT_FOUND)
        return found

    @staticmethod
    def _move(one: Held, to: EffectState) -> None:
        require_transition(one.state, to)
        one.state = to

    def _move_if(self, one: Held, to: EffectState) -> None:
        if one.state is not to:
            self._move(one, to)

    def view(
        self, revision: Revision, *, releases: Iterable[str] = (), receipt: str | None = None
    ) -> TransactionView:
        return TransactionView(
            **_members(revision, "txn rev state agent run_key"),
            txn_digest=revision.digest,
            aud=revision.agent,
            submitted_at=self._at(),
            effects=tuple(self._effect_view(one) for one in revision.held),
            releases=tuple(releases),
            receipt=receipt,
            attempt_id=revision.attempt if receipt is not None else None,
        )

    def _effect_view(self, one: Held) -> EffectView:
        effect, undo = one.effect, one.compensation
        undoing = CompensationRef(effect_id=undo.effect.effect_id, state=undo.state) if undo else None
        return EffectView(
            **_members(effect, "effect_id seq tool tool_digest resource args_digest call_key args"),
            effect_digest=effect.digest,
            state=one.state,
            decision=self._decision(one.verdict, one.reasons),
            review=self._review(one) if one.verdict is Verdict.REVIEW else None,
            outcome=OutcomeView(outcome=one.outcome, at=self._at(), error=one.error) if one.outcome else None,
            compensation=undoing,
        )

    def _decision(self, verdict: Verdict, reasons: tuple[Reason, ...]) -> DecisionView:
        of: dict[str, Any] = {"decision_id": "decision-1", "bundle": "fake", "commit": "fake"}
        return DecisionView(outcome=verdict, reasons=reasons, **of)

    def _review(self, one: Held) -> ReviewSummary:
        return ReviewSummary(
            review_id=f"review-{one.effect.effect_id[:8]}",
            state="open" if one.state is E.REVIEW else "met",
            url=f"{self.iss}/reviews/review-{one.effect.effect_id[:8]}",
            answer_by=self._at() + timedelta(hours=24),
            needs=(ASKED.model_copy(update={"have": len(one.votes)}),),
        )

    def _at(self) -> datetime:
        return datetime.fromtimestamp(self._now(), UTC)
