"""One question over HTTP to a host the operator allowed: addressed, bounded and read strictly, or not at all.

Rules kept here: who is reached and how is ``reaching.py``'s; the whole answer has one limit of time and one of size,
counted while it arrives, and is JSON by the strict loader. No token, and nothing of an answer, is ever part of a
message. A connection serves one question: nothing is held open between two.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Final

import httpx2

from countersign.contract import JSON, ContractError, Limits, load
from policy_service.facts.sql import SourceFailedError
from policy_service.lookups import DirectoryApi, FactsHost
from policy_service.reaching import Resolve, UnreachableError, answered, resolve


@dataclass(frozen=True)
class Place:
    """A host that may be called, with the token it knows us by."""

    setting: FactsHost | DirectoryApi
    token: str | None = field(default=None, repr=False)
    resolve: Resolve = resolve

    async def ask(
        self, method: str, url: str, *, limits: Limits, seconds: float, body: bytes | None = None
    ) -> JSON | None:
        """The JSON it answers with; None when it answers 404.

        Raises:
            SourceFailedError: it gave no usable answer in that time.
        """
        try:
            async with asyncio.timeout(seconds):
                return await self._ask(method, url, limits, body)
        except TimeoutError as error:
            raise SourceFailedError(f"no whole answer within {seconds:g} s") from error
        except UnreachableError as error:
            raise SourceFailedError(str(error)) from error
        except (httpx2.HTTPError, httpx2.InvalidURL, OSError) as error:
            raise SourceFailedError(f"{type(error).__name__}: {error}") from error

    async def _ask(self, method: str, url: str, limits: Limits, body: bytes | None) -> JSON | None:
        headers = {"Accept": "application/json, application/scim+json"}
        if body is not None:
            headers["Content-Type"] = "application/json"
        if self.token is not None:
            headers["Authorization"] = f"Bearer {self.token}"
        there = self.setting
        async with answered(method, url, there, headers=headers, body=body, resolve=self.resolve) as response:
            return await _read(response, limits)


async def _read(response: httpx2.Response, limits: Limits) -> JSON | None:
    if response.status_code == 404:
        return None
    if response.status_code != 200:
        raise SourceFailedError(f"it answered {response.status_code}")
    if response.headers.get("content-encoding", "identity") != "identity":
        raise SourceFailedError("its answer is compressed, which nobody asked for")
    kind = response.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind not in {"application/json", "application/scim+json"}:
        raise SourceFailedError(f"its answer is {kind!r} and not application/json")
    raw = bytearray()
    async for chunk in response.aiter_raw():
        raw += chunk
        if len(raw) > limits.max_bytes:
            raise SourceFailedError(f"its answer is longer than {limits.max_bytes} bytes")
    try:
        if len(raw) > _IN_A_THREAD:
            return await asyncio.to_thread(load, bytes(raw), limits)
        return load(bytes(raw), limits)
    except ContractError as error:
        raise SourceFailedError(f"its answer is no JSON we take ({error.code})") from error


_IN_A_THREAD: Final = 65_536  # bytes; more would hold up the event loop
