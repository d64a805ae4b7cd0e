"""What is read of an answer, by either way to wait: no more than the request allows, and nothing that unpacks."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import httpx2
import pytest

from countersign import ServiceUnavailable
from countersign.exchange import Answered, Asked
from countersign.waiting import AsyncWaits, SyncWaits, run

MOST = 100
ASKED = Asked("GET", "http://service/v1/keys", {}, b"", connect_seconds=1, read_seconds=1, max_bytes=MOST)
Answer = Callable[[httpx2.Request], httpx2.Response]


def blocking(answer: Answer) -> Answered:
    with httpx2.Client(transport=httpx2.MockTransport(answer)) as http:
        return run(SyncWaits(lambda: http).send(ASKED))


def awaiting(answer: Answer) -> Answered:
    def client() -> httpx2.AsyncClient:
        return httpx2.AsyncClient(transport=httpx2.MockTransport(answer))

    return asyncio.run(AsyncWaits(client).send(ASKED))


BOTH = pytest.mark.parametrize("send", [blocking, awaiting])


@BOTH
def test_an_answer_as_large_as_the_request_allows_is_read_whole(send: Callable[[Answer], Answered]) -> None:
    assert send(lambda _: httpx2.Response(200, content=b"x" * MOST)).body == b"x" * MOST


@BOTH
def test_a_larger_one_is_as_good_as_none(send: Callable[[Answer], Answered]) -> None:
    with pytest.raises(ServiceUnavailable, match="its answer is larger than 100 bytes") as away:
        send(lambda _: httpx2.Response(200, content=b"x" * (MOST + 1)))
    assert "GET http://service/v1/keys" in str(away.value)


@BOTH
def test_one_that_unpacks_is_refused_unread(send: Callable[[Answer], Answered]) -> None:
    headers = {"Content-Encoding": "gzip"}
    with pytest.raises(ServiceUnavailable, match=r"its answer is compressed \('gzip'\)"):
        send(lambda _: httpx2.Response(200, headers=headers, stream=httpx2.ByteStream(b"x")))
