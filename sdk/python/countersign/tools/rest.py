"""Calls of other people's HTTP services from staged tools, with what each answer says about the world.

    bank = RestApi("https://bank.example/v1", headers=lambda: {"Authorization": f"Bearer {token()}"})

    @tool("charge", resource=("Order", "order_id"))
    def charge(order_id: str, amount_cents: int) -> str:
        made: dict[str, str] = bank.post("/orders/{id}/charges", {"id": order_id}, json={"cents": amount_cents}).json
        return made["charge_id"]

Rules: what changes something is sent only while an effect fires, under its call key as the idempotency key, and what
else the same call changes under a key of its own (current.py); an answer that says that nothing happened is `NotDone`,
but only while nothing else of the call may have been done; one that does not say is `RestUnknown`, and a guess is never
made; the status alone says it, so a body that is too large, too slow or broken off takes nothing back; no redirect is
followed; headers (credentials) are asked for at each request and stand in no journal and in no error, also where an
answer repeats them (rest_security.py). In a probe nothing but reading is allowed, and a refusal to read says nothing
about what has happened.
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
from countersign.contract.canonical import canonicalize
from countersign.contract.errors import ContractError
from countersign.errors import CountersignError, NotDone
from countersign.http_clients import http_client
from countersign.tools.context import current_effect, firing_effect, require_no_probe
from countersign.tools.definition import DidNotHappen, Happened, ProbeAnswer, Unsure
from countersign.tools.rest_security import fill_path, find_invalid_header, require_base_url, told

Headers = Mapping[str, str] | Callable[[], Mapping[str, str]]

_PLAIN: Final = {"Accept-Encoding": "identity"}  # compression is an answer of any size in a few bytes
_SAFE: Final = frozenset({"GET", "HEAD", "OPTIONS"})  # RFC 9110 section 9.2.1: they ask for no change

_UNDECIDED: Final = frozenset({408, 409})
"""Of the 4xx: the server gave up waiting for the rest of a request, or (as providers answer to an idempotency key)
another request under the same key is under way. Every other one was refused, RFC 9110 section 15.5.
"""

_NOT_COMPLETE: Final = frozenset({202, 207})
"""Of the 2xx: accepted, and perhaps never done (RFC 9110 section 15.3.3); several answers, some of which may be no."""

_NOT_THERE: Final = 404
"""Of an object, or of the route to it: frameworks and gateways say so as JSON of what they do not know."""

_NOT_SENT: Final = (
    httpx2.ConnectError,
    httpx2.ConnectTimeout,
    httpx2.PoolTimeout,
    httpx2.UnsupportedProtocol,
)
"""What fails before the first byte of a request has left."""


class RestUnknown(CountersignError):
    """The service was asked and it is not known what it did: no answer, or one that does not say. Where it refused this
    request and another one of the same call may have been done, that refusal (`NotDone`) is the cause.
    """

    code = "rest_unknown"


@dataclass(frozen=True, slots=True)
class RestResponse:
    """An answer below 300 (but 202 and 207): it has been done. `json` is what the service wrote, of whatever type, and
    None where the body is none, or not `whole`: larger or slower than we read, or broken off; then `text` is its
    beginning.
    """

    status: int
    json: Any
    text: str
    whole: bool = True


class _Request(NamedTuple):
    """What is asked. Two of one call that are equal are one."""

    what: str  # as people read it: without values
    method: str
    url: httpx2.URL
    content: bytes | None

    @property
    def digest(self) -> str:
        """By which it is known again, in another process too."""
        head = canonicalize([self.method, str(self.url)])
        return hashlib.sha256(head + b"\n" + (self.content or b"")).hexdigest()


class _Received(NamedTuple):
    """The status of an answer, as much of its text as we keep, whether that is all, and what may be told of it."""

    status: int
    text: str
    whole: bool
    told: str


class RestApi:
    """One service. Connections are kept; any number of threads may use it.

    `headers` are added to every request; a function is asked each time, so that a token may be renewed (but not by a
    `RestApi` that changes something). `idempotency_header` is the name under which the call key is sent, or
    `current_effect().request_key(2)` with the second change of one call, and so on. `accepted_is_done`: of this
    service, 202 and 207 mean that it has happened; without it they are unknown. `timeout_seconds` is how long it may be
    silent, and how long all of its body may take; whoever lets a status drip is bounded by the timeout of the tool's
    manifest.

    Raises:
        SettingsError: the address is none, or plain http to another machine.
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
        """Read. It may stand outside an effect."""
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
        """What a probe answers by reading: `Happened` with what `found` makes of the answer's JSON, `DidNotHappen`
        where that is None, or where `missing` says of the JSON of a 404 that it is this service's own "there is no such
        object". Any other 404 may be of a route that has moved, so it is unsure, as is whatever else.

        Raises:
            NotDone, RestUnknown: it was not asked, or did not answer: a probe that raises is unsure as well.
        """
        request = self._request("GET", path, values, query, None)
        what = request.what
        with _require_sole_request():
            status, text, whole, _ = self._send(request, {})
        if not (200 <= status < 300 or status == _NOT_THERE):
            return Unsure(f"{what} was answered {status}")
        says = _json(text) if whole else None
        if says is None or status in _NOT_COMPLETE:
            return Unsure(f"{what} was answered {status} without JSON that says it all")
        if status == _NOT_THERE and not missing(says):
            return Unsure(
                f"{what} was answered {status}, and `missing=` does not know it as a word about the object"
            )
        result = None if status == _NOT_THERE else found(says)
        return DidNotHappen() if result is None else Happened(result)

    def post(self, path: str, values: Mapping[str, str | int] = {}, *, json: JSON = None) -> RestResponse:
        """Have something made or done."""
        return self.request("POST", path, values, json=json)

    def put(self, path: str, values: Mapping[str, str | int] = {}, *, json: JSON = None) -> RestResponse:
        """Put something in place."""
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
        """Send one request. `{name}` in the path is replaced by that value, quoted: it never becomes another path.

        Raises:
            NotDone: nothing was sent, or the service refused; and nothing else of this call may have been done.
            RestUnknown: anything else but success.
            OutsideTransaction: it would change something, and no effect is firing.
            MisuseError: path and values do not fit, or another change of the same call is under way.
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
            raise NotDone(f"{what} was not sent: the header {name!r} has a value that no request can carry")
        json = {} if request.content is None else {"Content-Type": "application/json"}
        until = time.monotonic() + self._timeout
        try:
            with self._client().stream(
                request.method, request.url, headers={**given, **ours, **json}, content=request.content
            ) as response:
                text, whole = self._read(response, until)
                return _Received(response.status_code, text, whole, told(text, given))
        except _NOT_SENT as error:
            raise NotDone(f"{what} was not sent: {type(error).__name__}") from None
        except httpx2.HTTPError as error:
            raise RestUnknown(f"{what} was sent and not answered: {type(error).__name__}") from None

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
        """As much of the body as we keep, and whether that is all of it."""
        read, whole = bytearray(), True
        try:
            # What a server compressed unasked comes in pieces of 1 MiB at most.
            for chunk in response.iter_bytes():
                read += chunk
                if len(read) > self._max_bytes or time.monotonic() > until:
                    whole = False
                    break
        except httpx2.HTTPError:
            whole = False  # the service had said by its status what it did (RFC 9110 section 15)
        return read[: self._max_bytes].decode("utf-8", "replace"), whole


@contextmanager
def _require_sole_request() -> Iterator[None]:
    """A refusal says of its own request that nothing happened; of the call only while no other one may have acted."""
    try:
        yield
    except NotDone as refused:
        effect = firing_effect.get()
        if effect is None or not (effect.in_doubt or effect.requests.may_have_acted):
            raise
        raise RestUnknown(f"{refused}; and something else of this call may have been done") from refused


def _interpret(what: str, heard: _Received, *, accepted_is_done: bool) -> RestResponse:
    status, text, whole, begins = heard
    if 200 <= status < 300 and (accepted_is_done or status not in _NOT_COMPLETE):
        return RestResponse(status, _json(text) if whole else None, text, whole)
    answered = f"{what} was answered {status}: {begins}".rstrip(": ")
    if 400 <= status < 500 and status not in _UNDECIDED:
        raise NotDone(answered)
    raise RestUnknown(answered)


def _json(text: str) -> Any:
    """What the body says, where it says it as JSON that can be kept; foreign documents hold what ours may not."""
    try:
        return load(text.encode())
    except ContractError:
        pass
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        return None
