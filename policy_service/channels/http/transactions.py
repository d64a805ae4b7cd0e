"""/v1/transactions, /v1/redemptions, /v1/outcomes: the life of a transaction, from its submission to its outcomes."""

from __future__ import annotations

import re
from typing import Annotated

from fastapi import Path, Query, Request, Response

from countersign.contract import ErrorCode, TxnState, body_digest
from countersign.contract.wire import (
    AttemptId,
    CompensateRequest,
    CompensationView,
    RedeemRequest,
    RedemptionView,
    ReleaseRequest,
    RenewRequest,
    ReportRequest,
    SubmitRequest,
    TransactionPage,
    TransactionView,
    WithdrawRequest,
)
from policy_service.channels.http import openapi
from policy_service.channels.http.api import Api, ApiRoutes, Cursor, Limit, api_of
from policy_service.channels.http.responses import json_response
from policy_service.channels.requests import read_model
from policy_service.errors import InvalidRequestError
from policy_service.identity.agents import Caller
from policy_service.queries import transactions as mine
from policy_service.queries.transactions import wait_for_people, wait_while_in_review
from policy_service.workflow.effects.withdraw import withdraw
from policy_service.workflow.releases.compensate import compensate
from policy_service.workflow.releases.redeem import RedeemResult, redeem
from policy_service.workflow.releases.release import release
from policy_service.workflow.releases.renew import renew
from policy_service.workflow.releases.report import report
from policy_service.workflow.releases.submit import IdempotencyKey, submit

_WAIT = re.compile(r"(?:^|[,;\s])wait=(\d{1,6})(?:$|[,;\s])", re.ASCII | re.IGNORECASE)
_KEY_MAX = 255

Txn = Path(description="The transaction's id: 64 lower-case hex digits.", pattern="^[0-9a-f]{64}$")

State = Query(default=None, description="Only transactions in this state.")

AskedAfter = Query(
    default=None,
    max_length=64,
    description="With `Prefer: wait`: the last question you have seen, or empty. A newer unanswered question ends the "
    "wait at once. Without this parameter, only a question asked during the wait ends it.",
)

_PREFER = openapi.header_parameter(
    "Prefer",
    "`wait=N`: respond when no review is open any more or people ask a question (for an unsettled transaction: when "
    "people have settled something), or after N seconds.",
)
_KEY = openapi.header_parameter(
    "Idempotency-Key",
    "Your name for this submission; the same key and body return the same transaction.",
    required=True,
    schema={"type": "string", "minLength": 1, "maxLength": _KEY_MAX, "pattern": "^[ -~]+$"},
)


def wanted_wait(request: Request, most: int) -> int:
    """Seconds of ``Prefer: wait=N`` (RFC 7240), at most ``most``; any other preference is ignored, as the RFC says."""
    found = _WAIT.search(", ".join(request.headers.getlist("prefer")))
    return min(int(found.group(1)), most) if found else 0


def idempotency_key(request: Request, agent: str, body: bytes) -> IdempotencyKey:
    """The idempotency key of a submission.

    Raises:
        InvalidRequestError: idempotency_key_required.
    """
    value = request.headers.get("idempotency-key", "").strip()
    if not (0 < len(value) <= _KEY_MAX and value.isascii() and value.isprintable()):
        raise InvalidRequestError(
            f"send an Idempotency-Key of 1 to {_KEY_MAX} ASCII characters, the same one when you repeat this request",
            code=ErrorCode.IDEMPOTENCY_KEY_REQUIRED,
        )
    return IdempotencyKey(agent, value, request.scope["path"], body_digest(body))


routes = ApiRoutes(prefix="/v1/transactions", tags=["transactions"])
redemption_routes = ApiRoutes(prefix="/v1", tags=["redemptions"])


@routes.post(
    "",
    status_code=201,
    response_model=TransactionView,
    summary="Submit the staged effects of one transaction",
    responses={
        200: {
            "model": TransactionView,
            "description": "Already submitted; its present state.",
            "headers": openapi.LOCATION_HEADER,
        },
        201: {"description": "A new revision.", "headers": openapi.LOCATION_HEADER},
        **openapi.problem_responses(400, 401, 403, 409, 413, 415, 421, 422, 429, 503),
    },
    openapi_extra=openapi.with_parameters(openapi.request_body(SubmitRequest), _KEY, _PREFER)
    | {"security": openapi.AGENT_SECURITY},
)
async def submit_transaction(request: Request) -> Response:
    api = api_of(request)
    caller, body = await api.authentication.agent(request)
    api.rate_limits.submit(caller.agent)
    key = idempotency_key(request, caller.agent, body)
    submitted = await submit(api.ctx, caller, read_model(SubmitRequest, body), key)
    snapshot = submitted.snapshot
    seconds = wanted_wait(request, api.ctx.settings.max_wait_s)
    # The submission is recorded. `Prefer: wait` is only a preference, so its limit must not fail the request.
    if seconds and api.rate_limits.can_wait(caller.agent):
        with api.rate_limits.wait(caller.agent, seconds):
            snapshot = await wait_while_in_review(api.ctx, snapshot.transaction.txn, seconds)
    view = await api.presenter.transaction(snapshot, releases=submitted.releases, receipt=submitted.receipt)
    return json_response(
        view, 201 if submitted.created else 200, {"Location": f"/v1/transactions/{view.txn}"}
    )


@routes.agent("GET ")
async def list_transactions(
    api: Api,
    caller: Caller,
    state: TxnState | None = State,
    cursor: str | None = Cursor,
    limit: int | None = Limit,
) -> TransactionPage:
    """List your transactions, the newest first."""
    rows = api.ctx.settings.rows(limit)
    return await mine.transaction_page(api.ctx, caller, state=state, cursor=cursor, limit=rows)


@routes.agent("GET /{txn}", 404, 409, 429, header=_PREFER)
async def get_transaction(
    api: Api, caller: Caller, request: Request, txn: str = Txn, asked_after: str | None = AskedAfter
) -> TransactionView:
    """Read a transaction."""
    seconds = wanted_wait(request, api.ctx.settings.max_wait_s)
    with api.rate_limits.wait(caller.agent, seconds):
        found = await wait_for_people(api.ctx, caller, txn, seconds, asked_after)
    return await api.presenter.transaction(found)


@routes.agent("POST /{txn}/withdraw", 404, 409)
async def withdraw_transaction(
    api: Api, caller: Caller, payload: WithdrawRequest, txn: str = Txn
) -> TransactionView:
    """Withdraw a transaction before it is redeemed."""
    return await api.presenter.transaction(await withdraw(api.ctx, caller, txn, payload.reason))


@routes.agent("POST /{txn}/release", 404, 409)
async def release_transaction(
    api: Api, caller: Caller, payload: ReleaseRequest, txn: str = Txn
) -> TransactionView:
    """Issue the releases of a ready transaction, bound to the key of the caller."""
    released = await release(api.ctx, caller, txn, payload.rev)
    return await api.presenter.transaction(released.snapshot, releases=released.releases)


@routes.agent("POST /{txn}/compensate", 404, 409)
async def compensate_effect(
    api: Api, caller: Caller, payload: CompensateRequest, txn: str = Txn
) -> CompensationView:
    """Request the release of a compensation."""
    undone = await compensate(api.ctx, caller, txn, payload.effect_id)
    effect = await api.presenter.effect(undone.snapshot, undone.effect)
    return CompensationView(effect=effect, release=undone.release)


@redemption_routes.agent("POST /redemptions", 404, 409)
async def redeem_releases(api: Api, caller: Caller, payload: RedeemRequest) -> RedemptionView:
    """Redeem the releases of a whole transaction, or of one compensation."""
    return await _redemption_view(api, await redeem(api.ctx, caller, payload.tokens, payload.attempt_id))


@redemption_routes.agent("POST /redemptions/{attempt_id}/renew", 404, 409)
async def renew_redemption(
    api: Api,
    caller: Caller,
    payload: RenewRequest,
    attempt_id: Annotated[AttemptId, Path(description="The attempt's name.")],
) -> RedemptionView:
    """Request a later fire_by for the same attempt."""
    return await _redemption_view(api, await renew(api.ctx, caller, attempt_id, payload.effect_ids))


@redemption_routes.agent("POST /outcomes", 404, 409)
async def report_outcomes(api: Api, caller: Caller, payload: ReportRequest) -> TransactionView:
    """Report the outcomes of redeemed effects."""
    return await api.presenter.transaction(await report(api.ctx, caller, payload))


async def _redemption_view(api: Api, redeemed: RedeemResult) -> RedemptionView:
    return RedemptionView(
        attempt_id=redeemed.attempt_id,
        redeemed=redeemed.redeemed,
        receipt=redeemed.receipt,
        transaction=await api.presenter.transaction(redeemed.snapshot),
    )
