"""Calls of other people's HTTP services from staged tools, with what each answer says about the world.

    bank = RestApi("https://bank.example/v1", headers=lambda: {"Authorization": f"Bearer {token()}"})

    @tool("charge", resource=("Order", "order_id"))
    def charge(order_id: str, amount_cents: int) -> dict[str, Any]:
        return bank.post("/orders/{order_id}/charges", {"order_id": order_id}, json={"cents": amount_cents}).json

Rules: what changes something is sent only while an effect fires, under its call key as the idempotency key; an answer
that says that nothing happened is `NotDone`, one that does not say is `RestUnknown`, and a guess is never made; no
redirect is followed; headers (credentials) are asked for at each call and stand in no journal and in no error.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Self
from urllib.parse import quote, urlsplit

import httpx2
import orjson

from countersign.contract.admission import JSON, load
from countersign.contract.canonical import canonicalize
from countersign.contract.errors import ContractError
from countersign.current import current_effect
from countersign.errors import CountersignError, MisuseError, NotDone, SettingsError
from countersign.settings import is_loopback

Headers = Mapping[str, str] | Callable[[], Mapping[str, str]]

_SAFE: Final = frozenset({"GET", "HEAD", "OPTIONS"})  # RFC 9110 section 9.2.1: they ask for no change
_NAME: Final = re.compile(r"\{([a-z_][a-z0-9_]*)\}")
_MAX_TOLD: Final = 300  # characters of an answer that people and agents get to read

_UNDECIDED: Final = frozenset({408, 409})
"""Of the 4xx: the server gave up waiting for the rest of a request, or (as providers answer to an idempotency key)
another request under the same key is under way. Every other one was refused, RFC 9110 section 15.5.
"""

_NOT_SENT: Final = (
    httpx2.ConnectError,
    httpx2.ConnectTimeout,
    httpx2.PoolTimeout,
    httpx2.UnsupportedProtocol,
)
"""What fails before the first byte of a request has left."""


class RestUnknown(CountersignError):
    """The service was asked and it is not known what it did: no answer, or one that does not say."""

    code = "rest_unknown"


@dataclass(frozen=True, slots=True)
class RestAnswer:
    """An answer below 300: it has been done. `json` is None where the body is no JSON."""

    status: int
    json: Any
    text: str


class RestApi:
    """One service. Connections are kept; any number of threads may use it.

    `headers` are added to every request; a function is asked each time, so that a token may be renewed.
    `idempotency_header` is the name under which the call key is sent.

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
        transport: httpx2.BaseTransport | None = None,
    ) -> None:
        self._url = _sound(url)
        self._headers = headers
        self._idempotency_header = idempotency_header
        self._max_bytes = max_answer_bytes
        self._http = httpx2.Client(
            timeout=timeout_seconds, follow_redirects=False, transport=transport, trust_env=False
        )

    def get(
        self, path: str, values: Mapping[str, str | int] = {}, *, query: Mapping[str, str] = {}
    ) -> RestAnswer:
        """Read. It may stand outside an effect."""
        return self.request("GET", path, values, query=query)

    def post(self, path: str, values: Mapping[str, str | int] = {}, *, json: JSON = None) -> RestAnswer:
        """Have something made or done."""
        return self.request("POST", path, values, json=json)

    def put(self, path: str, values: Mapping[str, str | int] = {}, *, json: JSON = None) -> RestAnswer:
        """Put something in place."""
        return self.request("PUT", path, values, json=json)

    def patch(self, path: str, values: Mapping[str, str | int] = {}, *, json: JSON = None) -> RestAnswer:
        """Change something."""
        return self.request("PATCH", path, values, json=json)

    def delete(self, path: str, values: Mapping[str, str | int] = {}) -> RestAnswer:
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
    ) -> RestAnswer:
        """Send one request. `{name}` in the path is replaced by that value, quoted: it never becomes another path.

        Raises:
            NotDone: nothing was sent, or the service refused.
            RestUnknown: anything else but success.
            OutsideTransaction: it would change something, and no effect is firing.
            MisuseError: path and values do not fit.
        """
        headers = dict(self._headers() if callable(self._headers) else self._headers)
        if method not in _SAFE:
            headers[self._idempotency_header] = current_effect().call_key
        content = None if json is None else canonicalize(json)
        if content is not None:
            headers["Content-Type"] = "application/json"
        what = f"{method} {path}"
        try:
            with self._http.stream(
                method,
                self._url + _filled(path, values),
                params=dict(query),
                headers=headers,
                content=content,
            ) as response:
                text = self._read(response)
        except _NOT_SENT as error:
            raise NotDone(f"{what} was not sent: {type(error).__name__}") from None
        except httpx2.HTTPError as error:
            raise RestUnknown(f"{what} was sent and not answered: {type(error).__name__}") from None
        return _judged(what, response.status_code, text)

    def close(self) -> None:
        """Close its connections."""
        self._http.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _read(self, response: httpx2.Response) -> str:
        """As much of the body as we keep; the status alone says what happened."""
        read = bytearray()
        for chunk in response.iter_bytes():
            read += chunk
            if len(read) > self._max_bytes:
                break
        return read[: self._max_bytes].decode("utf-8", "replace")


def _judged(what: str, status: int, text: str) -> RestAnswer:
    if 200 <= status < 300:
        return RestAnswer(status, _json(text), text)
    told = f"{what} was answered {status}: {text[:_MAX_TOLD]}".rstrip(": ")
    if 400 <= status < 500 and status not in _UNDECIDED:
        raise NotDone(told)
    raise RestUnknown(told)


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


def _filled(path: str, values: Mapping[str, str | int]) -> str:
    named = _NAME.findall(path)
    if not path.startswith("/") or path.startswith("//") or set(named) != set(values):
        raise MisuseError(
            f"the path {path!r} names {sorted(set(named))} and was given {sorted(values)}; it begins with / and each "
            "{name} in it has one value"
        )
    return _NAME.sub(lambda found: _segment(found[1], values[found[1]]), path)


def _segment(name: str, value: str | int) -> str:
    written = str(value)
    if written in {"", ".", ".."}:
        raise MisuseError(f"{name}={written!r} cannot be a part of a path: it would be another path")
    return quote(written, safe="")


def _sound(url: str) -> str:
    parts = urlsplit(url)
    host = parts.hostname or ""
    if (
        parts.scheme not in {"http", "https"}
        or not host
        or parts.query
        or parts.fragment
        or "@" in parts.netloc
    ):
        raise SettingsError(
            f"{parts.scheme}://{host} is not the address of a service; write it like https://bank.example/v1, and "
            "credentials as headers"
        )
    if parts.scheme == "http" and not is_loopback(host):
        raise SettingsError(
            f"{url!r} is plain http to another machine, where anybody on the way could read and change what is sent"
        )
    return url.rstrip("/")
