"""The service's native API as typed calls, blocking and async.

`Service` is the one implementation, written as async functions over a `Transport`; `AsyncClient` is that with
an event loop under it, `Client` the same calls driven on the calling thread. Answers are read models: nothing
in them is a permission but a signed token, and those are verified by whoever wants to fire (enforcement.py).
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from typing import Final, Self, TypeVar
from urllib.parse import quote, urlencode

from countersign.contract.admission import Limits, load
from countersign.contract.errors import ContractError
from countersign.contract.keys import KeySet
from countersign.contract.manifest import ToolManifest, load_manifest
from countersign.contract.states import TxnState
from countersign.contract.wire import (
    AcceptRequest,
    AnswerRequest,
    CompensateRequest,
    CompensationView,
    DeclineRequest,
    EpochView,
    EvaluationRequest,
    EvaluationView,
    Recall,
    RedeemRequest,
    RedemptionView,
    ReleaseRequest,
    RenewRequest,
    ReportedOutcome,
    ReportRequest,
    SubmitRequest,
    TransactionPage,
    TransactionView,
    WireModel,
    WithdrawRequest,
    dump,
)
from countersign.errors import ServiceUnavailable
from countersign.service.transport import ApiCall, Transport
from countersign.waiting import AsyncExecutor, run_sync

M = TypeVar("M", bound=WireModel)

_EVALUATIONS: Final = "/v1/evaluations"
_JWKS: Final = "/.well-known/jwks.json"
_JSON_TYPES: Final = ("application/json", "application/jwk-set+json")


class Service:
    """Every call an agent makes, each with what it may raise in `Transport.ask`."""

    def __init__(self, transport: Transport, *, max_jwks_bytes: int) -> None:
        self._transport = transport
        self._max_jwks_bytes = max_jwks_bytes

    async def submit(
        self, request: SubmitRequest, *, wait: int = 0, idempotency_key: str | None = None
    ) -> TransactionView:
        """Submit staged effects; a retry inside this call repeats the same idempotency key."""
        headers = {"Idempotency-Key": idempotency_key or secrets.token_urlsafe(16)}
        return await self._post("/v1/transactions", request, TransactionView, wait=wait, headers=headers)

    async def view(self, txn: str, *, wait: int = 0, asked_after: str | None = None) -> TransactionView:
        """How a transaction stands; with `wait`, when that changes, when people ask something, or the time is up.

        `asked_after`: the last question that was seen, empty for none: a newer one is told at once.
        """
        query = "" if asked_after is None else f"?{urlencode({'asked_after': asked_after})}"
        call = ApiCall("GET", f"/v1/transactions/{_path_segment(txn)}{query}", wait=wait)
        return await self._transport.ask(call, TransactionView)

    async def transactions(
        self, *, state: TxnState | None = None, cursor: str | None = None
    ) -> TransactionPage:
        """Our transactions, the newest first, also those this process and its journal know nothing of."""
        wanted = {"state": None if state is None else state.value, "cursor": cursor}
        query = urlencode({name: value for name, value in wanted.items() if value is not None})
        return await self._transport.ask(
            ApiCall("GET", f"/v1/transactions{'?' if query else ''}{query}"), TransactionPage
        )

    async def withdraw(self, txn: str, reason: str | None = None) -> TransactionView:
        """Take a submission back: nobody needs to answer any more."""
        path = f"/v1/transactions/{_path_segment(txn)}/withdraw"
        return await self._post(path, WithdrawRequest(reason=reason), TransactionView)

    async def answer(self, review_id: str, question_id: str, text: str) -> TransactionView:
        """Say something to what a person asks about one of our effects; the first answer stands."""
        body = AnswerRequest(question_id=question_id, text=text)
        return await self._post(f"/v1/reviews/{_path_segment(review_id)}/answers", body, TransactionView)

    async def release(self, txn: str, rev: int) -> TransactionView:
        """Ask for the release tokens of a ready transaction, bound to our key."""
        return await self._post(
            f"/v1/transactions/{_path_segment(txn)}/release", ReleaseRequest(rev=rev), TransactionView
        )

    async def compensate(self, txn: str, effect_id: str) -> CompensationView:
        """Ask to take one fired effect back."""
        path = f"/v1/transactions/{_path_segment(txn)}/compensate"
        return await self._post(path, CompensateRequest(effect_id=effect_id), CompensationView)

    async def accept_proposal(self, proposal_id: str) -> TransactionView:
        """Take other arguments that a reviewer proposes: the transaction as a new revision, decided from the start."""
        path = f"/v1/proposals/{_path_segment(proposal_id)}/accept"
        return await self._post(path, AcceptRequest(), TransactionView)

    async def decline_proposal(self, proposal_id: str, reason: str | None = None) -> TransactionView:
        """Keep the arguments as they are, with a word for whoever proposed others."""
        path = f"/v1/proposals/{_path_segment(proposal_id)}/decline"
        return await self._post(path, DeclineRequest(reason=reason), TransactionView)

    async def redeem(self, tokens: Sequence[str], attempt_id: str) -> RedemptionView:
        """Spend the tokens of one whole transaction."""
        request = RedeemRequest(tokens=tuple(tokens), attempt_id=attempt_id)
        return await self._post("/v1/redemptions", request, RedemptionView)

    async def renew(self, attempt_id: str, effect_ids: Sequence[str]) -> RedemptionView:
        """Ask for more time to fire these effects of an attempt."""
        path = f"/v1/redemptions/{_path_segment(attempt_id)}/renew"
        return await self._post(path, RenewRequest(effect_ids=tuple(effect_ids)), RedemptionView)

    async def report(
        self, attempt_id: str, outcomes: Sequence[ReportedOutcome], recall: Recall | None = None
    ) -> TransactionView:
        """Tell what became of effects; the first report of each stands. `recall` proves an attempt the service has
        forgotten.
        """
        request = ReportRequest(attempt_id=attempt_id, outcomes=tuple(outcomes), recall=recall)
        return await self._post("/v1/outcomes", request, TransactionView)

    async def epoch(self) -> EpochView:
        """The incarnation of the service's database."""
        return await self._transport.ask(ApiCall("GET", "/v1/epoch"), EpochView)

    async def evaluate(self, request: EvaluationRequest) -> EvaluationView:
        """What would be decided, without recording anything.

        Raises:
            ServiceUnavailable: it answers about other effects than it was asked.
        """
        answer = await self._post(_EVALUATIONS, request, EvaluationView)
        if [one.tool for one in answer.effects] != [one.tool for one in request.effects]:
            raise ServiceUnavailable(
                f"POST {_EVALUATIONS}", "it answers about other effects than it was asked"
            )
        return answer

    async def manifest(self, tool: str, *, once: bool = False) -> ToolManifest:
        """The reviewed manifest of a tool in the active bundle. `once`: a service that is away is not tried again."""
        call = ApiCall("GET", f"/v1/tools/{_path_segment(tool)}", once=once)
        answer = await self._transport.raw(call)
        try:
            return load_manifest(answer.body)
        except ContractError as error:
            raise ServiceUnavailable(str(call), f"its answer is not a tool manifest: {error}") from error

    async def jwks(self) -> KeySet:
        """The service's signing keys. Read within a size limit, as JSON only, without following redirects."""
        call = ApiCall("GET", _JWKS, signed=False, max_bytes=self._max_jwks_bytes)
        answer = await self._transport.raw(call)
        kind = answer.headers.get("Content-Type", "").partition(";")[0].strip().lower()
        if kind not in _JSON_TYPES:
            raise ServiceUnavailable(str(call), f"its keys come as {kind or 'nothing'!r}, not as JSON")
        try:
            value = load(answer.body, Limits(max_bytes=self._max_jwks_bytes))
            return KeySet.from_jwks(value)
        except ContractError as error:
            raise ServiceUnavailable(str(call), f"its keys are not a sound key set: {error}") from error

    async def _post(
        self,
        path: str,
        body: WireModel,
        answer: type[M],
        *,
        wait: int = 0,
        headers: dict[str, str] | None = None,
    ) -> M:
        return await self._transport.ask(ApiCall("POST", path, dump(body), headers or {}, wait), answer)


class AsyncClient(Service):
    """The API for async programs; use it as `async with runtime.async_client() as client`."""

    def __init__(self, transport: Transport, waits: AsyncExecutor, *, max_jwks_bytes: int) -> None:
        super().__init__(transport, max_jwks_bytes=max_jwks_bytes)
        self._opened = waits.opened()

    async def __aenter__(self) -> Self:
        await self._opened.__aenter__()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._opened.__aexit__(None, None, None)


class Client:
    """The API for blocking programs: the calls of `Service`, on this thread."""

    def __init__(self, service: Service) -> None:
        self._service = service

    def submit(
        self, request: SubmitRequest, *, wait: int = 0, idempotency_key: str | None = None
    ) -> TransactionView:
        """See `Service.submit`."""
        return run_sync(self._service.submit(request, wait=wait, idempotency_key=idempotency_key))

    def view(self, txn: str, *, wait: int = 0, asked_after: str | None = None) -> TransactionView:
        """See `Service.view`."""
        return run_sync(self._service.view(txn, wait=wait, asked_after=asked_after))

    def transactions(self, *, state: TxnState | None = None, cursor: str | None = None) -> TransactionPage:
        """See `Service.transactions`."""
        return run_sync(self._service.transactions(state=state, cursor=cursor))

    def withdraw(self, txn: str, reason: str | None = None) -> TransactionView:
        """See `Service.withdraw`."""
        return run_sync(self._service.withdraw(txn, reason))

    def answer(self, review_id: str, question_id: str, text: str) -> TransactionView:
        """See `Service.answer`."""
        return run_sync(self._service.answer(review_id, question_id, text))

    def release(self, txn: str, rev: int) -> TransactionView:
        """See `Service.release`."""
        return run_sync(self._service.release(txn, rev))

    def compensate(self, txn: str, effect_id: str) -> CompensationView:
        """See `Service.compensate`."""
        return run_sync(self._service.compensate(txn, effect_id))

    def accept_proposal(self, proposal_id: str) -> TransactionView:
        """See `Service.accept_proposal`."""
        return run_sync(self._service.accept_proposal(proposal_id))

    def decline_proposal(self, proposal_id: str, reason: str | None = None) -> TransactionView:
        """See `Service.decline_proposal`."""
        return run_sync(self._service.decline_proposal(proposal_id, reason))

    def redeem(self, tokens: Sequence[str], attempt_id: str) -> RedemptionView:
        """See `Service.redeem`."""
        return run_sync(self._service.redeem(tokens, attempt_id))

    def renew(self, attempt_id: str, effect_ids: Sequence[str]) -> RedemptionView:
        """See `Service.renew`."""
        return run_sync(self._service.renew(attempt_id, effect_ids))

    def report(
        self, attempt_id: str, outcomes: Sequence[ReportedOutcome], recall: Recall | None = None
    ) -> TransactionView:
        """See `Service.report`."""
        return run_sync(self._service.report(attempt_id, outcomes, recall))

    def epoch(self) -> EpochView:
        """See `Service.epoch`."""
        return run_sync(self._service.epoch())

    def evaluate(self, request: EvaluationRequest) -> EvaluationView:
        """See `Service.evaluate`."""
        return run_sync(self._service.evaluate(request))

    def manifest(self, tool: str) -> ToolManifest:
        """See `Service.manifest`."""
        return run_sync(self._service.manifest(tool))

    def jwks(self) -> KeySet:
        """See `Service.jwks`."""
        return run_sync(self._service.jwks())


def _path_segment(name: str) -> str:
    """One segment of a path, whatever is in it."""
    return quote(name, safe="")
