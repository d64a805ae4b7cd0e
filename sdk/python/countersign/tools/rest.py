"""HTTP calls from staged tools, with each response interpreted as done, not done or unknown.

    bank = RestApi("https://bank.example/v1", headers=lambda: {"Authorization": f"Bearer {token()}"})

    @tool("charge", resource=("Order", "order_id"))
    def charge(order_id: str, amount_cents: int) -> str:
        made: dict[str, str] = bank.post("/orders/{id}/charges", {"id": order_id}, json={"cents": amount_cents}).json
        return made["charge_id"]

State-changing requests are sent only while an effect fires, with its call key as the idempotency key; further requests
of the same call get a key of their own (context.py). A response that says that nothing happened is `NotDone`, but only
if no other request of the call may have been carried out. A response that does not say is `RestUnknown`; nothing is
guessed. The status alone decides, so a body that is too large, too slow or truncated changes nothing. Redirects are not
followed. Headers (credentials) are requested for each call and appear in no journal and no error, not even where a
response echoes them (rest_security.py). In a probe only reads are allowed, and a refused read says nothing about what
has happened.
"""

from __future__ import annotations

import hashlib
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, Self

import httpx2
import orjson

from countersign.contract.admission import JSON, load
from countersign.contract.digests import canonicalize
from countersign.contract.errors import ContractError
from countersign.errors import CountersignError, NotDone
from countersign.http_clients import http_client
from countersign.tools.context import current_effect, firing_effect, require_no_probe
from countersign.tools.definition import DidNotHappen, Happened, ProbeAnswer, Unsure
from countersign.tools.rest_security import fill_path, find_invalid_header, redacted_excerpt, require_base_url

Headers = Mapping[str, str] | Callable[[], Mapping[str, str]]

_PLAIN: Final = {"Accept-Encoding": "identity"}  # a compressed response of any size fits in a few bytes
_SAFE: Final = frozenset({"GET", "HEAD", "OPTIONS"})  # RFC 9110 section 9.2.1: safe methods

_UNDECIDED: Final = frozenset({408, 409})
"""Undecided 4xx: the server gave up waiting for the rest of a request, or (as providers use 409 for idempotency keys)
another request under the same key is in flight. Every other 4xx is a refusal, RFC 9110 section 15.5.
"""

_NOT_COMPLETE: Final = frozenset({202, 207})
"""Incomplete 2xx: accepted, and perhaps never done (RFC 9110 section 15.3.3); several results, some of which may be
failures.
"""

_NOT_THERE: Final = 404
"""The object or the route is missing: frameworks and gateways return JSON for unknown routes too."""

_NOT_SENT: Final = (
    httpx2.ConnectError,
    httpx2.ConnectTimeout,
    httpx2.PoolTimeout,
    httpx2.UnsupportedProtocol,
)
"""Errors raised before the first byte of a request is sent."""


class RestUnknown(CountersignError):
    """The result of a request is not known: no response, or one that does not say. If this request was refused but
    another one of the same call may have been carried out, the refusal (`NotDone`) is the cause.
    """

    code = "rest_unknown"


@dataclass(frozen=True, slots=True)
class RestResponse:
    """A response below 300 (except 202 and 207): the request was carried out. `json` is the parsed body of any type. It
    is None if there is no body, or if the body is not `whole`: too large, too slow or truncated. Then `text` is its
    beginning.
    """

    status: int
    json: Any
    text: str
    whole: bool = True


class _Request(NamedTuple):
    """A request; equal ones of one call are the same request."""

    what: str  # for people, without values
    method: str
    url: httpx2.URL
    content: bytes | None

    @property
    def digest(self) -> str:
        """Identifies the request, also in another process."""
        head = canonicalize([self.method, str(self.url)])
        return hashlib.sha256(head + b"\n" + (self.content or b"")).hexdigest()


class _Received(NamedTuple):
    """The status of a response, the part of its text that is kept, whether that is all, and the excerpt that errors may
    quote.
    """

    status: int
    text: str
    whole: bool
    excerpt: str


class RestApi:
    """An HTTP service. Connections are kept; thread-safe.

    `headers` are added to every request. A function is called for each request, so that a token can be renewed (but not
    by a `RestApi` that changes something). `idempotency_header` is the header for the call key, or
    `current_effect().request_key(2)` for the second change of one call, and so on. `accepted_is_done`: this service's
    202 and 207 mean that the request was carried out; by default they are unknown. `timeout_seconds` limits each wait
    for data, and the time to read the whole body. A status that arrives byte by byte is limited by the timeout of the
    tool's manifest.

    Raises:
        SettingsError: the address is invalid, or plain http to another machine.
    """

    def __init__(
        self,
        url: str,
        *,
        headers: Headers = {},  # noqa: B006 - never changed
        idempotency_header: str = "Idempotency-Key",
        timeout_seconds: float = 30.0,
        max_answer_bytes: int = 1 << 20,
        accepted_is_done: bool = False,
        transport: httpx2.BaseTransport | None = None,
    ) -> None:
        self._url = require_base_url(url)
        self._accepted_is_done = accepted_is_done
        self._headers = headers
        self._idempotency_header = idempotency_header
        self._max_bytes = max_answer_bytes
        self._timeout, self._transport = timeout_seconds, transport
        self._lock = threading.Lock()
        self._clients: dict[int, httpx2.Client] = {}  # by process: a fork must not share a connection

    def get(
        self, path: str, values: Mapping[str, str | int] = {}, *, query: Mapping[str, str] = {}
    ) -> RestResponse:
        """Read. Allowed outside an effect too."""
        return self.request("GET", path, values, query=query)

    def find(
        self,
        path: str,
        values: Mapping[str, str | int] = {},
        *,
        query: Mapping[str, str] = {},
        found: Callable[[Any], object] = lambda json: json,
        missing: Callable[[Any], bool] = lambda json: False,
    ) -> ProbeAnswer:
        """Answer a probe by reading. `Happened` with what `found` makes of the JSON; `DidNotHappen` if that is None, or
        if `missing` recognises the JSON of a 404 as this service's own "no such object". Any other 404 may come from
        a route that has moved, so it is `Unsure`, like any other response.

        Raises:
            NotDone, RestUnknown: no request or no response; a probe that raises counts as unsure.
        """
        request = self._request("GET", path, values, query, None)
        what = request.what
        with _require_sole_request():
            status, text, whole, _ = self._send(request, {})
        if not (200 <= status < 300 or status == _NOT_THERE):
            return Unsure(f"{what} was answered {status}")
        says = _json(text) if whole else None
        if says is None or status in _NOT_COMPLETE:
            return Unsure(f"{what} was answered {status} without complete JSON")
        if status == _NOT_THERE and not missing(says):
            return Unsure(
                f"{what} was answered {status}, and `missing=` does not recognise it as an answer about the object"
            )
        result = None if status == _NOT_THERE else found(says)
        return DidNotHappen() if result is None else Happened(result)

    def post(self, path: str, values: Mapping[str, str | int] = {}, *, json: JSON = None) -> RestResponse:
        """Create something, or start an action."""
        return self.request("POST", path, values, json=json)

    def put(self, path: str, values: Mapping[str, str | int] = {}, *, json: JSON = None) -> RestResponse:
        """Create or replace something."""
        return self.request("PUT", path, values, json=json)

    def patch(self, path: str, values: Mapping[str, str | int] = {}, *, json: JSON = None) -> RestResponse:
        """Change something."""
        return self.request("PATCH", path, values, json=json)

    def delete(self, path: str, values: Mapping[str, str | int] = {}) -> RestResponse:
        """Remove something."""
        return self.request("DELETE", path, values)

    def request(
        self,
        method: str,
        path: str,
        values: Mapping[str, str | int] = {},
        *,
        query: Mapping[str, str] = {},
        json: JSON = None,
    ) -> RestResponse:
        """Send one request. `{name}` in the path is replaced by that value, quoted, so that a value cannot change the
        path.

        Raises:
            NotDone: nothing was sent, or the service refused; and no other request of this call may have been carried
                out.
            RestUnknown: any other failure.
            OutsideTransaction: it would change something, and no effect is firing.
            MisuseError: path and values do not match, or another change of the same call is in flight.
        """
        request = self._request(method, path, values, query, json)
        with _require_sole_request():
            if method in _SAFE:
                return self._answer(request, {})
            require_no_probe(f"sends {request.what}")
            effect = current_effect()
            with effect.requests.sending(request.digest, request.what) as place:
                return self._answer(request, {self._idempotency_header: effect.request_key(place)})

    def _request(
        self, method: str, path: str, values: Mapping[str, str | int], query: Mapping[str, str], json: JSON
    ) -> _Request:
        url = httpx2.URL(self._url + fill_path(path, values)).copy_merge_params(dict(query))
        return _Request(f"{method} {path}", method, url, None if json is None else canonicalize(json))

    def _answer(self, request: _Request, ours: Mapping[str, str]) -> RestResponse:
        return _interpret(request.what, self._send(request, ours), accepted_is_done=self._accepted_is_done)

    def _send(self, request: _Request, ours: Mapping[str, str]) -> _Received:
        what = request.what
        given = dict(self._headers() if callable(self._headers) else self._headers)
        if name := find_invalid_header(given):
            raise NotDone(f"{what} was not sent: the header {name!r} has a value that is invalid in HTTP")
        json = {} if request.content is None else {"Content-Type": "application/json"}
        until = time.monotonic() + self._timeout
        try:
            with self._client().stream(
                request.method, request.url, headers={**given, **ours, **json}, content=request.content
            ) as response:
                text, whole = self._read(response, until)
                return _Received(response.status_code, text, whole, redacted_excerpt(text, given))
        except _NOT_SENT as error:
            raise NotDone(f"{what} was not sent: {type(error).__name__}") from None
        except httpx2.HTTPError as error:
            raise RestUnknown(f"{what} was sent and got no response: {type(error).__name__}") from None

    def close(self) -> None:
        """Close its connections."""
        with self._lock:
            client = self._clients.pop(os.getpid(), None)
        if client is not None:
            client.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _client(self) -> httpx2.Client:
        with self._lock:
            client = self._clients.get(os.getpid())
            if client is None:
                client = self._clients[os.getpid()] = http_client(
                    headers=_PLAIN, timeout=self._timeout, transport=self._transport
                )
            return client

    def _read(self, response: httpx2.Response, until: float) -> tuple[str, bool]:
        """The part of the body that is kept, and whether that is all."""
        read, whole = bytearray(), True
        try:
            # A body that was compressed in spite of the header arrives in pieces of at most 1 MiB.
            for chunk in response.iter_bytes():
                read += chunk
                if len(read) > self._max_bytes or time.monotonic() > until:
                    whole = False
                    break
        except httpx2.HTTPError:
            whole = False  # the status has already determined the result (RFC 9110 section 15)
        return read[: self._max_bytes].decode("utf-8", "replace"), whole


@contextmanager
def _require_sole_request() -> Iterator[None]:
    """A refusal proves that nothing happened only while no other request of the call may have been carried out."""
    try:
        yield
    except NotDone as refused:
        effect = firing_effect.get()
        if effect is None or not (effect.in_doubt or effect.requests.may_have_acted):
            raise
        raise RestUnknown(
            f"{refused}; and another request of this call may have been carried out"
        ) from refused


def _interpret(what: str, heard: _Received, *, accepted_is_done: bool) -> RestResponse:
    status, text, whole, begins = heard
    if 200 <= status < 300 and (accepted_is_done or status not in _NOT_COMPLETE):
        return RestResponse(status, _json(text) if whole else None, text, whole)
    answered = f"{what} was answered {status}: {begins}".rstrip(": ")
    if 400 <= status < 500 and status not in _UNDECIDED:
        raise NotDone(answered)
    raise RestUnknown(answered)


def _json(text: str) -> Any:
    """The body as JSON, or None if it is not JSON that can be kept: foreign documents may contain what admission
    refuses.
    """
    try:
        return load(text.encode())
    except ContractError:
        pass
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        return None
