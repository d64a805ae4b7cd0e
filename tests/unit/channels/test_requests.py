"""Bodies are read within a limit; those of unidentified senders within one for all of them together."""

import asyncio

import pytest
from starlette.requests import Request
from starlette.types import Message

from policy_service.channels.requests import UNIDENTIFIED, media_type, read_body, read_unidentified_body
from policy_service.errors import InvalidRequestError


class Sender:
    """A request whose body arrives as a test says."""

    def __init__(self, *headers: tuple[bytes, bytes]) -> None:
        self._messages: asyncio.Queue[Message] = asyncio.Queue()
        scope = {"type": "http", "method": "POST", "headers": [*headers]}
        self.request = Request(scope, self._messages.get)

    def send(self, body: bytes, *, more: bool = True) -> None:
        self._messages.put_nowait({"type": "http.request", "body": body, "more_body": more})


CHUNKED = (b"transfer-encoding", b"chunked")


@pytest.mark.parametrize("read", [read_body, read_unidentified_body])
async def test_a_body_may_be_as_large_as_its_limit_and_no_larger(read: type[read_body]) -> None:
    sender = Sender(CHUNKED)
    sender.send(b"a" * 6)
    sender.send(b"b" * 4, more=False)
    assert await read(sender.request, 10) == b"aaaaaabbbb"
    larger = Sender(CHUNKED)
    larger.send(b"a" * 11)
    with pytest.raises(InvalidRequestError) as caught:
        await read(larger.request, 10)
    assert caught.value.status == 413
    assert UNIDENTIFIED.held_bytes == 0


@pytest.mark.parametrize("read", [read_body, read_unidentified_body])
async def test_a_length_beyond_the_limit_is_refused_before_a_byte_arrives(read: type[read_body]) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        await read(Sender((b"content-length", b"11")).request, 10)
    assert caught.value.status == 413


async def test_the_oldest_unfinished_body_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(UNIDENTIFIED, "max_bytes", 100)
    senders = [Sender(CHUNKED) for _ in range(4)]
    reading = [asyncio.create_task(read_unidentified_body(one.request, 80)) for one in senders]
    for sender in senders:
        sender.send(b"a" * 30)
        await asyncio.sleep(0.01)
    assert [one.done() for one in reading] == [True, False, False, False]
    assert UNIDENTIFIED.held_bytes == 90
    senders[3].send(b"a" * 20)
    await asyncio.sleep(0.01)
    assert [one.done() for one in reading] == [True, True, False, False]
    for sender in senders[2:]:
        sender.send(b"", more=False)
    assert [len(await one) for one in reading[2:]] == [30, 50]
    for one in reading[:2]:
        with pytest.raises(InvalidRequestError) as caught:
            await one
        assert caught.value.status == 429
    assert UNIDENTIFIED.held_bytes == 0


async def test_a_sender_that_goes_away_gives_its_memory_back() -> None:
    sender = Sender(CHUNKED)
    reading = asyncio.create_task(read_unidentified_body(sender.request, 100))
    sender.send(b"a" * 30)
    await asyncio.sleep(0.01)
    assert UNIDENTIFIED.held_bytes == 30
    reading.cancel()
    await asyncio.gather(reading, return_exceptions=True)
    assert UNIDENTIFIED.held_bytes == 0


UTF8 = {"": "", 'text/plain; charset="utf-8"': "text/plain", "text/plain; a=charset": "text/plain"}
UTF8 |= dict.fromkeys(("application/json", "Application/JSON ; Charset=UTF-8"), "application/json")
OTHERS = [
    *'charset=utf-16 charset=UTF-7 charset=latin1 charset="utf-16" charset charset= charset=utf-8-sig'.split(),
    *("a=b;charset=utf-16", "charset=utf-8; charset=utf-16", " CHARSET = utf-16"),
]


def test_a_media_type_in_utf8_is_read() -> None:
    assert {given: media_type(given) for given in UTF8} == UTF8


@pytest.mark.parametrize("parameters", OTHERS)
def test_another_character_encoding_is_refused(parameters: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        media_type(f"application/x-www-form-urlencoded;{parameters}")
    assert caught.value.status == 400
