"""What a connection may cost, and which requests have one reading only (RFC 9110, RFC 9112)."""

import asyncio
import itertools
import json
import re
import socket
from collections.abc import AsyncIterator

import pytest

from policy_service.channels.http import connections
from policy_service.channels.http.connections import MAX_FIELDS, MAX_HEAD_BYTES, MAX_PIPELINED
from policy_service.channels.requests import UNIDENTIFIED
from tests.fakes.echo_server import EchoServer, echo_server

HOST = b"Host: here\r\n"
CLOSE = b"Connection: close\r\n"
GET, POST = b"GET / HTTP/1.1\r\n" + HOST, b"POST / HTTP/1.1\r\n" + HOST
CHUNKED = b"POST /x HTTP/1.1\r\n" + HOST + b"Transfer-Encoding: chunked\r\n"
UPGRADE = b"Connection: upgrade\r\nUpgrade: h2c\r\n"
ENOUGH = 16_000_000  # bytes no refusal may need; loopback buffers hold a few MB
SOON = 0.3


@pytest.fixture(scope="module")
async def server() -> AsyncIterator[EchoServer]:
    async with echo_server() as started:
        yield started


@pytest.fixture(autouse=True)
def nothing_seen(server: EchoServer) -> None:
    server.seen.clear()


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("head_s", "body_s", "write_s"):
        monkeypatch.setattr(connections.BoundedConnection, name, SOON)


def statuses(answers: bytes) -> list[int]:
    return [int(found) for found in re.findall(rb"HTTP/1\.1 (\d{3})", answers)]


# --- trailers and chunks


async def test_a_request_after_trailers_has_its_own_headers(server: EchoServer) -> None:
    first = CHUNKED + b"\r\n0\r\nX-Last: 1\r\n\r\n"
    answer = await server.exchange(first, b"GET /second HTTP/1.1\r\n" + HOST + CLOSE + b"\r\n")
    assert statuses(answer) == [200, 200]
    assert [name for name, _ in server.seen[1].headers] == [b"host", b"connection"]


# What begins it, and what is repeated without an end.
ENDLESS = {
    "trailers": (b"0\r\n", b"X-A: " + b"a" * 59 + b"\r\n"),
    "short trailers": (b"0\r\n", b"a:\r\n"),
    "one trailer": (b"0\r\nX-A: ", b"a" * 4096),
    "the name of a trailer": (b"0\r\n", b"a" * 4096),
    "a chunk extension": (b"2;a=", b"a" * 4096),
    "a quoted chunk extension": (b'2;a="', b"a" * 4096),
    "chunk extensions": (b"", b"1;" + b"a" * 400 + b"\r\na\r\n"),
    "a chunk size": (b"", b"0" * 4096),
    "chunks of one byte": (b"", b"1\r\na\r\n" * 100),
}


@pytest.mark.parametrize(("begin", "again"), ENDLESS.values(), ids=ENDLESS)
@pytest.mark.parametrize("path", [b"/x", b"/unread"])
async def test_endless_frames_are_cut(server: EchoServer, path: bytes, begin: bytes, again: bytes) -> None:
    head = CHUNKED.replace(b"/x", path) + b"\r\n" + begin
    assert await server.pour(head, itertools.repeat(again, 100_000_000 // len(again))) < ENOUGH
    assert all(seen.body is None for seen in server.seen)


async def test_small_chunks_with_extensions_are_a_body(server: EchoServer) -> None:
    body = b"".join(b"10;name=value\r\n" + b"a" * 16 + b"\r\n" for _ in range(20_000))
    assert statuses(await server.exchange(CHUNKED + CLOSE + b"\r\n", body, b"0\r\n\r\n")) == [200]
    assert server.seen[0].body == b"a" * 320_000


# --- the head


async def test_a_head_has_a_number_of_fields(server: EchoServer) -> None:
    for fields, status in ((MAX_FIELDS, 200), (MAX_FIELDS + 1, 400)):
        assert statuses(await server.exchange(GET + CLOSE + b"a:\r\n" * (fields - 2) + b"\r\n")) == [status]


ODD = {
    "HTTP/2": b"GET / HTTP/2.0\r\n" + HOST + b"\r\n",
    "no version": b"GET /\r\n\r\n",
    "a coding that is not chunked": CHUNKED.replace(b"chunked", b"gzip, chunked") + b"\r\n0\r\n\r\n",
    "chunked twice": CHUNKED + b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "chunked and a length": CHUNKED + b"Content-Length: 5\r\n\r\n0\r\n\r\n",
    "chunked in HTTP/1.0": CHUNKED.replace(b"1.1", b"1.0") + b"\r\n0\r\n\r\n",
    "two lengths": POST + b"Content-Length: 1\r\n" * 2 + b"\r\na",
    "a length with a sign": POST + b"Content-Length: +1\r\n\r\na",
    "a folded line": GET + b"X-A: a\r\n b\r\n\r\n",
    "a space before the colon": GET + b"X-A : a\r\n\r\n",
    "a bare CR": GET + b"X-A: a\rb\r\n\r\n",
    "a NUL": GET + b"X-A: a\0b\r\n\r\n",
    "an upgrade with a body": POST + UPGRADE + b"Content-Length: 3\r\n\r\nGET",
    "a tunnel": b"CONNECT here:443 HTTP/1.1\r\n" + HOST + b"\r\n",
    "all of the server": b"OPTIONS * HTTP/1.1\r\n" + HOST + b"\r\n",
    "a fragment": b"GET /a#b HTTP/1.1\r\n" + HOST + b"\r\n",
    "another scheme": b"GET ftp://here/ HTTP/1.1\r\n" + HOST + b"\r\n",
    "another host in the target": b"GET http://there/ HTTP/1.1\r\n" + HOST + b"\r\n",
    "another port in the target": b"GET http://here:81/ HTTP/1.1\r\n" + HOST + b"\r\n",
    "a user in the target": b"GET http://here@there/ HTTP/1.1\r\n" + HOST + b"\r\n",
    "a host in the target alone": b"GET http://here/ HTTP/1.1\r\n\r\n",
}


@pytest.mark.parametrize("name", ODD)
async def test_an_ambiguous_request_closes_the_connection(server: EchoServer, name: str) -> None:
    status, code = (421, "misdirected_host") if b" http://" in ODD[name] else (400, "invalid_request")
    answer = await server.exchange(ODD[name])
    assert (statuses(answer), server.seen) == ([status], [])
    head, _, body = answer.partition(b"\r\n\r\n")
    for field in (b"x-content-type-options: nosniff", b"content-type: application/problem+json"):
        assert b"\r\n" + field in head
    assert json.loads(body)["code"] == code


SOUND = {
    "HTTP/1.0": (b"GET /a HTTP/1.0\r\n" + HOST + b"\r\n", "/a"),
    "an absolute target": (b"GET http://here/a?b HTTP/1.1\r\n" + HOST + CLOSE + b"\r\n", "/a"),
    "an absolute target, in capitals": (b"GET HTTP://HERE/a HTTP/1.1\r\n" + HOST + CLOSE + b"\r\n", "/a"),
    "a path with two slashes": (b"GET //there/a HTTP/1.1\r\n" + HOST + CLOSE + b"\r\n", "//there/a"),
    "an unused upgrade": (b"GET /a HTTP/1.1\r\n" + HOST + UPGRADE + b"\r\n", "/a"),
}


@pytest.mark.parametrize(("request_", "path"), SOUND.values(), ids=SOUND)
async def test_an_unambiguous_request_is_served(server: EchoServer, request_: bytes, path: str) -> None:
    assert statuses(await server.exchange(request_)) == [200]
    assert [seen.path for seen in server.seen] == [path]


# --- connections


async def test_pipelined_requests_are_limited(server: EchoServer) -> None:
    one, last = GET + b"\r\n", GET + CLOSE + b"\r\n"
    assert statuses(await server.exchange(one * (MAX_PIPELINED - 1) + last)) == [200] * MAX_PIPELINED
    assert len(statuses(await server.exchange(one * 1_000))) <= MAX_PIPELINED
    refused = await server.exchange(POST + b"Content-Length: 0\r\n\r\nnonsense\r\n\r\n")
    assert 400 not in statuses(refused), "no answer to an earlier request"


async def test_a_response_arrives_although_the_body_is_not_read(server: EchoServer) -> None:
    head = POST.replace(b"/ ", b"/unread ") + CLOSE
    sized = head + b"Content-Length: 4000000\r\n\r\n"
    assert (await server.exchange(sized, b"a" * 4_000_000)).endswith(b"seen")
    head += b"Expect: 100-continue\r\nContent-Length: 2\r\n\r\n"
    assert statuses(await server.exchange(head, b"ok")) == [200], "and none is asked for"
    assert statuses(await server.exchange(head.replace(b"/unread", b"/x"), b"ok")) == [100, 200]


async def test_an_unread_body_is_cut_off(server: EchoServer) -> None:
    head = POST.replace(b"/ ", b"/unread ") + b"Content-Length: %d\r\n\r\n" % 2**40
    sent = await server.pour(head, itertools.repeat(b"a" * 65_536, 1_600))
    assert connections.MAX_DISCARDED_BYTES <= sent < connections.MAX_DISCARDED_BYTES + ENOUGH


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("after", [b"\r\n", b"\r", b"G"])
async def test_an_empty_line_keeps_no_connection_open(server: EchoServer, after: bytes) -> None:
    assert statuses(await server.exchange(GET + b"\r\n", after, pause=0.1)) == [200]


@pytest.mark.usefixtures("impatient")
async def test_a_client_that_reads_no_response_is_dropped(server: EchoServer) -> None:
    with socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
        client.setblocking(False)
        loop = asyncio.get_running_loop()
        await loop.sock_connect(client, ("127.0.0.1", server.port))
        await loop.sock_sendall(client, b"GET /large HTTP/1.1\r\n" + HOST + b"\r\n")
        await asyncio.sleep(2 * SOON)
        received = 0
        with pytest.raises(ConnectionResetError):
            while part := await asyncio.wait_for(loop.sock_recv(client, 1_000_000), 5):
                received += len(part)
            raise ConnectionResetError  # an end is as good, if it is early
    assert received < 10_000_000


async def test_unfinished_heads_share_a_limit(server: EchoServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(UNIDENTIFIED, "max_bytes", 4 * MAX_HEAD_BYTES)
    head = b"GET / HTTP/1.1\r\nX-A: " + b"a" * (MAX_HEAD_BYTES - 1_000)
    opened = []
    for _ in range(6):
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(head)
        await writer.drain()
        await asyncio.sleep(0.05)
        opened.append((reader, writer))
    assert UNIDENTIFIED.held_bytes <= 4 * MAX_HEAD_BYTES
    assert [reader.at_eof() for reader, _ in opened] == [True, True, False, False, False, False]
    for reader, writer in opened[2:]:
        writer.write(b"\r\n" + HOST + CLOSE + b"\r\n")
        assert statuses(await reader.read()) == [200]
    for _, writer in opened:
        writer.close()
    assert UNIDENTIFIED.held_bytes == 0
