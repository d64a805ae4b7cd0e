"""Chunked bodies with extensions and trailers, in any packets: the application gets their content, or nothing."""

from collections.abc import AsyncIterator
from itertools import pairwise
from typing import Any

import h11
import pytest
from hypothesis import given
from hypothesis import strategies as st

from policy_service.channels.http.connections import MAX_FIELDS, MAX_HEAD_BYTES, PIECE_BYTES
from tests.fakes.echo_server import EchoServer, Seen, echo_server

Pairs = list[tuple[bytes, bytes]]
Cuts = list[int]
HEAD = [(b"host", b"here"), (b"transfer-encoding", b"chunked"), (b"connection", b"close")]
TOKEN = st.text("abcXYZ09-_", min_size=1, max_size=12).map(str.encode)
VALUE = st.text('abc 09;:,"=/', max_size=40).map(str.strip).map(str.encode)
KNOWN = b"Host Content-Type Agent-Proof Idempotency-Key Origin Cookie Expect Upgrade"
NAME = TOKEN | st.sampled_from(KNOWN.split())
# What no trailer may be named.
FRAMING = st.sampled_from([b"Content-Length", b"Transfer-Encoding", b"Connection"])
EXTENSION = st.builds(lambda name, value: b";" + name + b"=" + value, TOKEN, TOKEN)
CHUNK = st.tuples(st.binary(min_size=1, max_size=300), st.lists(EXTENSION, max_size=3).map(b"".join))
MANY = st.integers(MAX_FIELDS - 10, MAX_FIELDS + 10).map(lambda count: [(b"a", b"")] * count)
TRAILERS = st.lists(st.tuples(NAME, VALUE), max_size=4) | MANY


@pytest.fixture(scope="module")
async def server() -> AsyncIterator[EchoServer]:
    async with echo_server() as started:
        yield started


def encoded(chunks: Pairs, trailers: Pairs) -> bytes:
    lines = [b"%x%s\r\n%s\r\n" % (len(data), extension, data) for data, extension in chunks]
    return b"".join([*lines, b"0\r\n", fields(trailers), b"\r\n"])


def fields(named: Pairs) -> bytes:
    return b"".join(name + b": " + value + b"\r\n" for name, value in named)


def request(body: bytes) -> bytes:
    return b"POST /x HTTP/1.1\r\n" + fields(HEAD) + b"\r\n" + body


async def seen_of(server: EchoServer, sent: bytes, cuts: list[int]) -> list[Seen]:
    """What the application receives of a request that arrives in these packets."""
    server.seen.clear()
    edges = [0, *sorted(cut % len(sent) for cut in cuts), len(sent)]
    answer = await server.exchange(*(sent[a:b] for a, b in pairwise(edges)))
    whole = [seen for seen in server.seen if seen.body is not None]
    assert answer.startswith(b"HTTP/1.1 200") == (len(whole) == 1)
    return whole


CUTS = st.lists(st.integers(0, 10_000), max_size=6)


@given(st.lists(CHUNK, max_size=6), TRAILERS, CUTS)
async def test_trailers_are_not_headers(server: Any, chunks: Pairs, trailers: Pairs, cuts: Cuts) -> None:
    whole = await seen_of(server, request(encoded(chunks, trailers)), cuts)
    if len(HEAD) + len(trailers) > MAX_FIELDS:
        assert whole == []
    else:
        assert [(seen.body, seen.headers) for seen in whole] == [(b"".join(data for data, _ in chunks), HEAD)]


@given(st.lists(CHUNK, max_size=3), st.integers(0, 2), st.integers(-3_000, 3_000), CUTS)
async def test_framing_has_one_limit(server: Any, chunks: Pairs, where: int, beyond: int, cuts: Cuts) -> None:
    """Data in the same packet as the end of the request may be counted late."""
    long = b"a" * (MAX_HEAD_BYTES + PIECE_BYTES + beyond if beyond > 0 else MAX_HEAD_BYTES - 2_000 + beyond)
    chunks = [(data, b"") for data, _ in chunks]
    places = [([(b"x", b";a=" + long), *chunks], []), (chunks, [(b"X-Long", long)]), (chunks, [(long, b"")])]
    assert ((await seen_of(server, request(encoded(*places[where])), cuts)) == []) == (beyond > 0)


FRAMED = VALUE | st.sampled_from([b"5", b"chunked", b"close", b"upgrade"])


@given(st.lists(CHUNK, max_size=3), st.tuples(FRAMING, FRAMED), CUTS)
async def test_framing_trailer_is_ignored(server: Any, chunks: Pairs, trailer: Any, cuts: Cuts) -> None:
    """It is dropped, or the request is refused."""
    for seen in await seen_of(server, request(encoded(chunks, [trailer])), cuts):
        assert (seen.body, seen.headers) == (b"".join(data for data, _ in chunks), HEAD)


DAMAGE = st.sampled_from(b"\r\n;: \t0a\0-")


@given(st.lists(CHUNK, max_size=4), TRAILERS, st.integers(0, 10_000), DAMAGE, CUTS)
async def test_damaged_body_is_parsed_like_another_parser_or_refused(
    server: EchoServer, chunks: Pairs, trailers: Pairs, place: int, byte: int, cuts: list[int]
) -> None:
    body = bytearray(encoded(chunks, trailers))
    body[place % len(body)] = byte
    sent = request(bytes(body))
    try:
        whole = await seen_of(server, sent, cuts)
    except TimeoutError:
        return  # the damage took its end away
    if whole:
        assert whole[0].headers == HEAD
        assert _by_h11(sent) in (whole[0].body, None)


def _by_h11(sent: bytes) -> bytes | None:
    """The body parsed by h11; None if it refuses."""
    other, body = h11.Connection(h11.SERVER), b""
    other.receive_data(sent)
    try:
        while True:
            event = other.next_event()
            if isinstance(event, h11.Data):
                body += event.data
            elif isinstance(event, h11.EndOfMessage):
                return body
            elif event is h11.NEED_DATA:
                return None
    except h11.RemoteProtocolError:
        return None
