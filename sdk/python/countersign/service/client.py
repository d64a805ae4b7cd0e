"""The service's native API as typed calls.

`Service` is the one implementation, written as async functions over a `Transport`; api_clients.py has the clients that
programs use. Responses are read models: nothing in them is a permission except
signed tokens, and those are verified before anything fires (enforcement.py).
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from typing import Final, TypeVar
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

M = TypeVar("M", bound=WireModel)

_EVALUATIONS: Final = "/v1/evaluations"
_JWKS: Final = "/.well-known/jwks.json"
_JSON_TYPES: Final = ("application/json", "application/jwk-set+json")


class Service:
    """Every call an agent makes. Errors are those of `Transport.ask`."""

    def __init__(self, transport: Transport, *, max_jwks_bytes: int) -> None:
        self._transport = transport
        self._max_jwks_bytes = max_jwks_bytes

    async def submit(
        self, request: SubmitRequest, *, wait: int = 0, idempotency_key: str | None = None
    ) -> TransactionView:
        """Submit staged effects. A retry inside this call repeats the same idempotency key."""
        headers = {"Idempotency-Key": idempotency_key or secrets.token_urlsafe(16)}
        return await self._post("/v1/transactions", request, TransactionView, wait=wait, headers=headers)

    async def view(self, txn: str, *, wait: int = 0, asked_after: str | None = None) -> TransactionView:
        """The state of a transaction; with `wait`, once it changes, a question is asked, or that many seconds have
        passed.

        `asked_after`: the last question that was seen, empty for none. A newer one is returned at once.
        """
        query = "" if asked_after is None else f"?{urlencode({'asked_after': asked_after})}"
        call = ApiCall("GET", f"/v1/transactions/{_path_segment(txn)}{query}", wait=wait)
        return await self._transport.ask(call, TransactionView)

    async def transactions(
        self, *, state: TxnState | None = None, cursor: str | None = None
    ) -> TransactionPage:
        """The agent's transactions, newest first, including those this process and its journal do not know."""
        wanted = {"state": None if state is None else state.value, "cursor": cursor}
        query = urlencode({name: value for name, value in wanted.items() if value is not None})
        return await self._transport.ask(
            ApiCall("GET", f"/v1/transactions{'?' if query else ''}{query}"), TransactionPage
        )

    async def withdraw(self, txn: str, reason: str | None = None) -> TransactionView:
        """Withdraw a submission: its review ends."""
        path = f"/v1/transactions/{_path_segment(txn)}/withdraw"
        return await self._post(path, WithdrawRequest(reason=reason), TransactionView)

    async def answer(self, review_id: str, question_id: str, text: str) -> TransactionView:
        """Answer a person's question about one of our effects; the first answer counts."""
        body = AnswerRequest(question_id=question_id, text=text)
        return await self._post(f"/v1/reviews/{_path_segment(review_id)}/answers", body, TransactionView)

    async def release(self, txn: str, rev: int) -> TransactionView:
        """Request the release tokens of a ready transaction, bound to our key."""
        return await self._post(
            f"/v1/transactions/{_path_segment(txn)}/release", ReleaseRequest(rev=rev), TransactionView
        )

    async def compensate(self, txn: str, effect_id: str) -> CompensationView:
        """Request the compensation of one fired effect."""
        path = f"/v1/transactions/{_path_segment(txn)}/compensate"
        return await self._post(path, CompensateRequest(effect_id=effect_id), CompensationView)

    async def accept_proposal(self, proposal_id: str) -> TransactionView:
        """Accept other arguments that a reviewer proposes: the transaction gets a new revision, decided from the
        start.
        """
        path = f"/v1/proposals/{_path_segment(proposal_id)}/accept"
        return await self._post(path, AcceptRequest(), TransactionView)

    async def decline_proposal(self, proposal_id: str, reason: str | None = None) -> TransactionView:
        """Keep the arguments, with a reason for the reviewer."""
        path = f"/v1/proposals/{_path_segment(proposal_id)}/decline"
        return await self._post(path, DeclineRequest(reason=reason), TransactionView)

    async def redeem(self, tokens: Sequence[str], attempt_id: str) -> RedemptionView:
        """Redeem the tokens of one whole transaction."""
        request = RedeemRequest(tokens=tuple(tokens), attempt_id=attempt_id)
        return await self._post("/v1/redemptions", request, RedemptionView)

    async def renew(self, attempt_id: str, effect_ids: Sequence[str]) -> RedemptionView:
        """Request a later `fire_by` for these effects of an attempt."""
        path = f"/v1/redemptions/{_path_segment(attempt_id)}/renew"
        return await self._post(path, RenewRequest(effect_ids=tuple(effect_ids)), RedemptionView)

    async def report(
        self, attempt_id: str, outcomes: Sequence[ReportedOutcome], recall: Recall | None = None
    ) -> TransactionView:
        """Report outcomes of effects; the first report of each counts. `recall` proves an attempt that the service
        has lost.
        """
        request = ReportRequest(attempt_id=attempt_id, outcomes=tuple(outcomes), recall=recall)
        return await self._post("/v1/outcomes", request, TransactionView)

    async def epoch(self) -> EpochView:
        """The epoch of the service's database."""
        return await self._transport.ask(ApiCall("GET", "/v1/epoch"), EpochView)

    async def evaluate(self, request: EvaluationRequest) -> EvaluationView:
        """The decision for these effects, without recording anything.

        Raises:
            ServiceUnavailable: the response is about other effects.
        """
        answer = await self._post(_EVALUATIONS, request, EvaluationView)
        if [one.tool for one in answer.effects] != [one.tool for one in request.effects]:
            raise ServiceUnavailable(f"POST {_EVALUATIONS}", "its response is about other effects")
        return answer

    async def manifest(self, tool: str, *, once: bool = False) -> ToolManifest:
        """The reviewed manifest of a tool in the active bundle. `once`: without retries if the service is
        unavailable.
        """
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


def _path_segment(name: str) -> str:
    """One path segment, quoted."""
    return quote(name, safe="")
