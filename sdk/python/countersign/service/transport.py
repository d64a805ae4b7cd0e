"""One request to the service: proof, nonce, retries, limits, and problems as typed errors.

Rules: every request to the agent's API carries a proof of our key over exactly what is sent. A refused nonce is retried
once with the next one. Connection errors and an overloaded service are retried a few times, with the same body and the
same idempotency key. Any response that is not valid raises `ServiceUnavailable`. No redirect is followed. Nothing here
decides whether anything fires.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar
from urllib.parse import urlsplit

import httpx2

from countersign import tracing
from countersign.clock import Clock
from countersign.concurrency import Executor
from countersign.contract.admission import Limits, load
from countersign.contract.codes import ErrorCode
from countersign.contract.errors import ContractError
from countersign.contract.keys import PrivateKey
from countersign.contract.proof import make_proof
from countersign.contract.wire import BroughtKey, WireModel, parse
from countersign.errors import ServiceRefused, ServiceUnavailable
from countersign.http_clients import HttpRequest, HttpResponse
from countersign.service.ephemeral_keys import PATH, EphemeralKeys
from countersign.service.problems import bad_proof_error, clock_skew, problem_error, shortened, unreached_text
from countersign.settings import Settings

M = TypeVar("M", bound=WireModel)

_PROOF: Final = "Agent-Proof"
_NONCE: Final = "Agent-Nonce"
_NO_NONCE_YET: Final = "none"  # the service responds to the first request with one
_BUSY_STATUSES: Final = frozenset({429, 502, 503, 504})
_MAX_NONCE: Final = 512


@dataclass
class Nonces:
    """The next nonce, shared by every request of the process; a stale one costs one more round trip."""

    current: str = _NO_NONCE_YET


@dataclass(frozen=True, slots=True)
class ApiCall:
    """A request to the service before it is signed."""

    method: str
    path: str
    body: bytes = b""
    headers: dict[str, str] = field(default_factory=dict)
    wait: int = 0  # seconds the service may take before it answers
    signed: bool = True
    max_bytes: int | None = None
    once: bool = False  # without retries

    def __str__(self) -> str:
        return f"{self.method} {self.path}"


class Transport:
    """Sends calls through the given executor."""

    def __init__(
        self,
        settings: Settings,
        executor: Executor,
        key: PrivateKey,
        nonces: Nonces,
        clock: Clock,
        ephemeral: EphemeralKeys | None = None,
    ) -> None:
        self._settings = settings
        self._executor = executor
        self._key = key
        self._nonces = nonces
        self._clock = clock
        self._ephemeral_keys = ephemeral
        self._prefix = urlsplit(settings.url).path.rstrip("/")

    async def ask(self, call: ApiCall, model: type[M]) -> M:
        """Send a call and parse its response as a model.

        Raises:
            ServiceRefused: the service answered with a problem.
            ServiceUnavailable: it did not answer, or not with such a model.
        """
        answer = await self.raw(call)
        limits = Limits(
            max_bytes=self._settings.max_answer_bytes, max_depth=72, max_nodes=self._settings.max_answer_nodes
        )
        try:
            return parse(model, answer.body, limits)
        except ContractError as error:
            raise ServiceUnavailable(
                str(call), f"its answer is not a {model.__name__}: {shortened(str(error))}"
            ) from error

    async def raw(self, call: ApiCall) -> HttpResponse:
        """Send a call until it is answered; returns only responses with a status below 300."""
        if call.signed and self._ephemeral_keys is not None and self._ephemeral_keys.due:
            await self._register_key(self._ephemeral_keys)
        return await self._persist(call)

    async def _register_key(self, ephemeral: EphemeralKeys) -> None:
        """Register our key with the platform's token; the service accepts no signature before that."""
        answer = await self._persist(ApiCall("POST", PATH, ephemeral.request()))
        try:
            ephemeral.take(parse(BroughtKey, answer.body))
        except ContractError as error:
            raise ServiceUnavailable(
                f"POST {PATH}", f"its answer is no BroughtKey: {shortened(str(error))}"
            ) from error

    async def _persist(self, call: ApiCall) -> HttpResponse:
        answer = await self._try(call)
        for tried in range(0 if call.once else self._settings.retries):
            if not isinstance(answer, Exception) and (not _is_busy(answer) or self._is_over_quota(answer)):
                break
            await self._executor.sleep(self._pause(tried, answer))
            answer = await self._try(call)
        if isinstance(answer, Exception):
            raise ServiceUnavailable(str(call), unreached_text(answer, self._settings.url)) from answer
        if answer.status >= 300:
            raise self._refused(call, answer)
        return answer

    def _is_over_quota(self, answer: HttpResponse) -> bool:
        """Whether the service demands a longer pause than a call may take: until then the answer stays the same."""
        return answer.status == 429 and _retry_after(answer) > self._settings.retry_max_seconds

    def _refused(self, call: ApiCall, answer: HttpResponse) -> ServiceRefused | ServiceUnavailable:
        problem = problem_error(str(call), answer.status, _problem_members(answer))
        if not isinstance(problem, ServiceRefused) or problem.problem_code != ErrorCode.BAD_PROOF:
            return problem
        return bad_proof_error(
            problem,
            signed=f"agent {self._settings.agent!r} with key {self._key.public.kid}",
            skew=clock_skew(answer, self._clock.wall()),
            by_token=self._ephemeral_keys is not None,
        )

    async def _try(self, call: ApiCall) -> HttpResponse | httpx2.TransportError:
        try:
            answer = await self._send(call)
            if _asks_for_nonce(answer):
                answer = await self._send(call)
            return answer
        except httpx2.TransportError as error:
            return error

    async def _send(self, call: ApiCall) -> HttpResponse:
        target = self._prefix + call.path
        headers = {"Accept": "application/json", "Accept-Encoding": "identity", **call.headers}
        if call.body:
            headers["Content-Type"] = "application/json"
        if call.wait:
            headers["Prefer"] = f"wait={call.wait}"
        if (traceparent := tracing.current_traceparent()) is not None:
            headers["traceparent"] = traceparent
        if call.signed:
            headers[_PROOF] = self._proof(call, target)
        answer = await self._executor.send(
            HttpRequest(
                method=call.method,
                target=target,
                headers=headers,
                body=call.body,
                connect_seconds=self._settings.connect_seconds,
                read_seconds=self._settings.read_seconds + call.wait,
                max_bytes=call.max_bytes or self._settings.max_answer_bytes,
            )
        )
        nonce = answer.headers.get(_NONCE)
        if nonce and len(nonce) <= _MAX_NONCE:
            self._nonces.current = nonce
        return answer

    def _proof(self, call: ApiCall, target: str) -> str:
        path, _, query = target.partition("?")
        return make_proof(
            self._key,
            agent=self._settings.agent,
            method=call.method,
            url_path=path,
            query=query,
            body=call.body,
            nonce=self._nonces.current,
            now=int(self._clock.wall()),
        )

    def _pause(self, tried: int, answer: HttpResponse | Exception) -> float:
        """Exponential, half of it random; the service may request more within our limit."""
        longest = self._settings.retry_max_seconds
        pause: float = min(self._settings.retry_base_seconds * 2.0**tried, longest)
        asked = 0 if isinstance(answer, Exception) else _retry_after(answer)
        if not isinstance(answer, Exception) and answer.status == 429:
            # an earlier request would be refused again
            return max(asked, pause) * (1 + secrets.randbelow(1000) / 2000)
        return min(max(pause, asked), longest) * (0.5 + secrets.randbelow(1000) / 2000)


def _retry_after(answer: HttpResponse) -> int:
    """The seconds of Retry-After; a date there is ignored."""
    asked = answer.headers.get("Retry-After", "")
    return int(asked) if asked.isascii() and asked.isdigit() and len(asked) < 10 else 0


def _is_busy(answer: HttpResponse) -> bool:
    return answer.status in _BUSY_STATUSES or _code(answer) == ErrorCode.IDEMPOTENCY_IN_FLIGHT


def _asks_for_nonce(answer: HttpResponse) -> bool:
    return answer.status == 401 and _code(answer) == ErrorCode.USE_NONCE


def _code(answer: HttpResponse) -> str | None:
    if answer.status < 400:
        return None
    code = _problem_members(answer).get("code")
    return code if isinstance(code, str) else None


def _problem_members(answer: HttpResponse) -> dict[str, Any]:
    """The members of problem details; empty for any other response (a proxy's page)."""
    if "json" not in answer.headers.get("Content-Type", ""):
        return {}
    try:
        value = load(answer.body)
    except ContractError:
        return {}
    return value if isinstance(value, dict) else {}
