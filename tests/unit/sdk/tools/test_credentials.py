"""Errors about a response that echoes the credentials of its request."""

import base64
import html
import json
import logging
import re
import traceback
from typing import Any

import pytest

from countersign import EffectFailed, NotDone, OutcomeUnknown, RestApi, SettingsError
from tests.fakes.desk import Desk
from tests.fakes.running import fails
from tests.unit.sdk.tools.banks import Bank, charge_tool, head, speaking

TOKEN = "sk-live/4111+9f1c7ab3=="
ECHOES: dict[str, bytes] = {
    "the header": f"invalid credentials: Bearer {TOKEN}".encode(),
    "the token": f"unknown key {TOKEN}.".encode(),
    "as JSON": json.dumps({"error": f"unknown key '{TOKEN}'"}).encode(),
    "as JSON that escapes": b'{"error": "unknown key sk-live\\/4111+9f1c7ab3=="}',
    "in an address": b"no /login?key=sk-live%2F4111%2B9f1c7ab3%3D%3D",
    "its end": f"unknown key ****{TOKEN[-12:]}".encode(),
    "its beginning": f"unknown key {TOKEN[:12]}...".encode(),
    "across the end of the excerpt": b"x" * 288 + TOKEN.encode(),
    "in small letters": f"unknown key {TOKEN.lower()}".encode(),
    "in an address that escapes all of it": "".join(f"%{one:02x}" for one in TOKEN.encode()).encode(),
    "as HTML": "".join(f"&#x{one:X};" for one in TOKEN.encode()).encode(),
    "as HTML in decimals": "".join(f"&#{one};" for one in TOKEN.encode()).encode(),
    "as HTML by names": b"<p>sk-live&sol;4111&plus;9f1c7ab3&equals;&equals;</p>",
    "as JSON that escapes all of it": "".join(f"\\u{one:04X}" for one in TOKEN.encode()).encode(),
    "as JSON in JSON": b'{"error": "{\\"key\\": \\"sk-live\\\\/4111\\\\u002b9f1c7ab3==\\"}"}',
    "in base64": base64.b64encode(TOKEN.encode()),
    "in base64 of addresses": base64.urlsafe_b64encode(TOKEN.encode()).rstrip(b"="),
    "in base64 behind one character": base64.b64encode(f":{TOKEN}!".encode()),
    "in base64 behind two characters": base64.b64encode(f"a:{TOKEN}@x".encode()),
    "in base64 in an address": base64.b64encode(TOKEN.encode()).replace(b"=", b"%3D"),
    "across the end of the excerpt, escaped": b"x" * 270
    + b"".join(b"%%%02X" % one for one in TOKEN.encode()),
    "twice": f"{TOKEN}{TOKEN} {TOKEN}".encode(),
}


def meanings(shown: str) -> str:
    """What somebody gets out of a text who reads its escapes."""
    plain = shown.encode("latin-1", "replace")
    escapes = (rb"%([0-9A-Fa-f]{2})", 16), (rb"&#x([0-9A-F]+);", 16), (rb"&#(\d+);", 10), (rb"\\u00(..)", 16)
    for escape, base in escapes:
        plain = re.sub(escape, lambda one, base=base: bytes([int(one[1], base)]), plain)
    read = [shown, plain.decode("latin-1"), html.unescape(shown), shown.replace("\\", "")]
    for word in re.findall(r"[A-Za-z0-9+/_-]{8,}", shown):
        for at in range(4):
            cut = word[at:].replace("-", "+").replace("_", "/")
            read.append(base64.b64decode(cut[: len(cut) // 4 * 4]).decode("latin-1"))
    return "\n".join(read)


def basic(user_and_password: str, encoding: str = "utf-8") -> str:
    return f"Basic {base64.b64encode(user_and_password.encode(encoding)).decode()}"


URL_SAFE = str.maketrans("+/", "-_")


def pieces(secret: str, length: int = 8) -> list[str]:
    """Every piece of it that is long enough to mean something."""
    return [secret[at : at + length] for at in range(len(secret) - length + 1)]


@pytest.mark.parametrize(
    ("echo", "status", "means"),
    [(echo, 401, EffectFailed) for echo in ECHOES.values()] + [(ECHOES["the header"], 500, OutcomeUnknown)],
    ids=[*ECHOES, "in doubt"],
)
def test_scenario_63_echoed_credentials_are_hidden(
    desk: Desk, bank: Bank, echo: bytes, status: int, means: Any, caplog: pytest.LogCaptureFixture
) -> None:
    bank.status, bank.body = status, echo
    caplog.set_level(logging.DEBUG)
    with RestApi(bank.url, headers=lambda: {"Authorization": f"Bearer {TOKEN}"}) as api:
        shown = fails(desk, means, (charge_tool(desk, api), "o-1", 100), match=f"answered {status}")
    error, txn = shown.error, shown.txn
    kept = b"".join(path.read_bytes() for path in desk.folder.iterdir() if path.name.startswith("journal.db"))
    trace = "".join(traceback.format_exception(error))
    placed = [effect.error for effect in txn.effects]
    reported = [one.error for revision in desk.service.revisions[txn.txn] for one in revision.held]
    everywhere = f"{error!r} {error.__cause__!r} {trace} {placed} {reported} {caplog.text}"
    assert "[hidden]" in everywhere and f"answered {status}".encode() in kept
    assert [piece for piece in pieces(TOKEN) if piece in everywhere or piece.encode() in kept] == []
    assert [piece for piece in pieces(TOKEN.lower()) if piece in meanings(shown.said).lower()] == []


HIDDEN: list[Any] = [
    ({"X-Api-Key": "s3cr3t"}, b"bad key s3cr3t!", "bad key [hidden]!"),
    ({"X-Api-Key": "s3cr3t"}, b"x" * 297 + b"s3cr3t", "x" * 297 + "[hidden]"),
    ({"X-Api-Key": "1234-5678"}, b"key 1234-5678", "key [hidden]"),
    ({"Authorization": "Basic YWRhOmh1bnRlcjI="}, b"no ada:hunter2", "no ada:[hidden]"),
    ({"Authorization": "basic YWRhYTpodW50ZXIyMjI="}, b"no adaa hunter222", "no [hidden] [hidden]"),
    ({"Authorization": "Basic YWRhOmh1bnRlcjI="}, b"no YWRhOmh1bnRlcjI=", "no [hidden]"),
    ({"Authorization": "Basic not base64"}, b"Basic not base64 at all", "[hidden] at all"),
    ({"Authorization": basic("u:pw1234").rstrip("=")}, b"password pw1234", "password [hidden]"),
    ({"Authorization": basic("shop:p\xe4ssw0rt", "latin-1")}, "no p\xe4ssw0rt".encode(), "no [hidden]"),
    ({"Authorization": basic("shop:p\xe4ssw0rt", "latin-1")}, b"no p\xe4ssw0rt", "no [hidden]"),
    ({"Authorization": basic("shop:p\xe4ssw0rt", "latin-1")}, b"no p%E4ssw0rt", "no [hidden]"),
    ({"Authorization": basic("shop:p\xe4ssw0rt")}, b"no p%C3%A4ssw0rt", "no [hidden]"),
    ({"Authorization": basic("shop:p\xe4ssw0rt")}, b"no p&auml;ssw0rt", "no [hidden]"),
    ({"Authorization": basic("shop:p\xe4ssw0rt")}, b"no p\\u00e4ssw0rt", "no [hidden]"),
    ({"Authorization": basic("u:pw>?12").translate(URL_SAFE)}, b"no pw>?12", "no [hidden]"),
    ({"X-Api-Key": "s%41cr3t"}, b"no s%41cr3t", "no [hidden]"),
    ({"X-Api-Key": "s3cr3t"}, b'50% off &c; "\\u00', '50% off &c; "\\u00'),
    ({"Cookie": "session=abcdefghijkl; b=2"}, b"no session abcdefghijkl", "no session [hidden]"),
    ({"A": "abcdefgh", "B": "ghijklmn"}, b"abcdefghijklmn", "[hidden]"),
    ({"Authorization": "Bearer 12345678"}, b"Bearer is what we take", "Bearer is what we take"),
    ({"X-Version": "1", "X-Empty": ""}, b"error 1 of 11", "error 1 of 11"),
    ({}, b"no such order", "no such order"),
]


@pytest.mark.parametrize(("headers", "echo", "shown"), HIDDEN)
def test_header_values_are_never_shown(bank: Bank, headers: Any, echo: bytes, shown: str) -> None:
    bank.status, bank.body = 401, echo
    with RestApi(bank.url, headers=headers) as api, pytest.raises(NotDone) as raised:
        api.get("/orders")
    assert str(raised.value) == f"GET /orders was answered 401: {shown}"


def test_credentials_that_a_broken_answer_cut_are_hidden_as_far_as_they_came() -> None:
    cut = speaking(head(401, "Content-Length: 1000"), b"unknown key sk-live/4111")
    hidden = pytest.raises(NotDone, match=r"unknown key \[hidden\]$")
    with cut as (url, _), RestApi(url, headers={"Authorization": f"Bearer {TOKEN}"}) as api, hidden:
        api.get("/orders")


def chain(error: BaseException | None) -> str:
    """All that is printed of it and of what it came from."""
    return f"{error!r} {error} {chain(error.__cause__ or error.__context__)}" if error else ""


UNSENDABLE = ["Bearer t0psecret-t0ken\n", " t0psecret", "t0psecret\r\nX: y", "t0psecret-é", "t0psecret\0"]


@pytest.mark.parametrize("value", UNSENDABLE)
def test_a_header_that_cannot_be_sent_is_named_without_its_value(desk: Desk, bank: Bank, value: str) -> None:
    call = charge_tool(desk, RestApi(bank.url, headers={"Authorization": value})), "o-1", 100
    shown = fails(desk, EffectFailed, call, match="not sent: the header 'Authorization'")
    assert "t0psecret" not in chain(shown.error) and bank.asked == []


NO_URLS: list[Any] = [
    "https://me:t0psecret@ho\u2100st/x",
    "https://me:t0psecret@[zz]/",
    "https://me:t0psecret@",
    "http://hooks.example/t0psecret",
    "https://hooks.example/x?key=t0psecret",
    *("bank.example", "ftp://bank.example", "https://me:t0psecret@bank.example"),
]


@pytest.mark.parametrize("url", NO_URLS)
def test_an_invalid_address_is_not_quoted(url: str) -> None:
    with pytest.raises(SettingsError) as shown:
        RestApi(url)
    assert "t0psecret" not in chain(shown.value)
