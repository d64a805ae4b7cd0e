"""Signature verification of payloads: almost valid signatures and invalid timestamps are refused.

The signatures here are made from Slack's description of them, not by what checks them.
"""

import hashlib
import hmac
import json
import unicodedata
from datetime import UTC, datetime
from typing import Final
from urllib.parse import parse_qsl, urlencode

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policy_service.channels.slack.payloads import SignatureChecker

SECRET: Final = "8f742231b10e8888abcd99yyyzzz85a5"  # in the form of Slack's secrets
NOW: Final = datetime(2026, 11, 19, 17, 7, tzinfo=UTC)
STAMP: Final = str(int(NOW.timestamp()))
# As Slack writes it, and not as any library would write it again: the space is a plus, the letter in two code points.
BODY: Final = b"payload=%7B%22type%22%3A+%22block_actions%22%2C%22who%22%3A+%22Zoe%CC%88%22%7D&empty="
EVENT: Final = '{"type": "event_callback", "who": "Zoe\u0308", "n": 1.0}'.encode()
SIGNATURE, TIMESTAMP = "X-Slack-Signature", "X-Slack-Request-Timestamp"


def sign(body: bytes = BODY, stamp: str = STAMP, secret: str = SECRET, version: str = "v0") -> str:
    digest = hmac.new(secret.encode(), f"{version}:{stamp}:".encode() + body, hashlib.sha256)
    return f"{version}={digest.hexdigest()}"


def holds(body: bytes, *headers: tuple[str, str], now: datetime = NOW) -> bool:
    return SignatureChecker(SECRET, lambda: now).failed(body, headers) is None


def signed(body: bytes = BODY, stamp: str = STAMP) -> tuple[tuple[str, str], tuple[str, str]]:
    """The headers of a delivery that Slack signed."""
    return (SIGNATURE, sign(body, stamp)), (TIMESTAMP, stamp)


def shifted(seconds: float) -> str:
    return str(int(NOW.timestamp()) + int(seconds))


@pytest.mark.parametrize("written", [str.title, str.lower, str.upper])
@pytest.mark.parametrize("body", [BODY, EVENT, b""])
def test_a_valid_signature_holds_for_any_header_case(body: bytes, written: type[str]) -> None:
    headers = [(written(name), value) for name, value in signed(body)]
    assert holds(body, *headers, ("Content-Type", "text/plain"))


GOOD: Final = sign()
# Of another body or secret, cut or changed, repeated, in another case or scheme, and what is not ASCII.
ANOTHER_DIGIT = GOOD[:-1] + ("0" if GOOD[-1] != "0" else "1")
NO_SIGNATURE = [sign(EVENT), sign(secret="e" + SECRET[1:]), GOOD[:-1], ANOTHER_DIGIT, "", GOOD.upper()]
NO_SIGNATURE += [f"{GOOD}, {GOOD}", f" {GOOD}", f"{GOOD}\n", f"v1={GOOD[3:]}", "v0=é" * 16, "v0=\ud800"]


@pytest.mark.parametrize("signature", NO_SIGNATURE)
def test_an_invalid_signature_is_refused(signature: str) -> None:
    assert not holds(BODY, (SIGNATURE, signature), (TIMESTAMP, STAMP))


def test_a_missing_or_repeated_header_is_refused() -> None:
    signature, timestamp = (SIGNATURE, GOOD), (TIMESTAMP, STAMP)
    assert holds(BODY, signature, timestamp)
    for headers in ([], [signature], [timestamp]):
        assert not holds(BODY, *headers), headers
    for more in (signature, timestamp, (SIGNATURE.lower(), "v0=0"), (TIMESTAMP.upper(), shifted(-1))):
        assert not holds(BODY, signature, timestamp, more), more
        assert not holds(BODY, more, signature, timestamp), more


RE_ENCODED: Final = {
    "the form, written again": (BODY, urlencode(parse_qsl(BODY.decode())).encode()),
    "the form, a plus as %20": (BODY, BODY.replace(b"+", b"%20")),
    "a line end behind it": (BODY, BODY + b"\n"),
    "the event, dumped again": (EVENT, json.dumps(json.loads(EVENT)).encode()),
    "the event, normalised": (EVENT, unicodedata.normalize("NFC", EVENT.decode()).encode()),
    "the event, with a BOM": (EVENT, b"\xef\xbb\xbf" + EVENT),
    "the event, without a body": (EVENT, b""),
}


@pytest.mark.parametrize(("body", "other"), RE_ENCODED.values(), ids=RE_ENCODED)
def test_the_same_in_other_bytes_is_another_body(body: bytes, other: bytes) -> None:
    assert body != other
    assert holds(body, *signed(body))
    assert not holds(other, *signed(body))


@pytest.mark.parametrize("body", [b"\xff\xfe", b"payload=\x80", b"\xed\xa0\x80", b"\xc0\xaf"])
def test_bytes_that_are_not_utf8_are_refused(body: bytes) -> None:
    assert not holds(body, *signed(body))


def test_timestamps_within_five_minutes_are_accepted() -> None:
    assert all(holds(BODY, *signed(stamp=shifted(seconds))) for seconds in (-300, -299, -1, 0, 1, 299, 300))


def test_timestamps_beyond_five_minutes_are_refused() -> None:
    assert not any(holds(BODY, *signed(stamp=shifted(seconds))) for seconds in (-86_400, -301, 301, 86_400))
    assert not holds(BODY, *signed(stamp=shifted(-300)), now=NOW.replace(microsecond=1))


ARABIC = str.maketrans("0123456789", "٠١٢٣٤٥٦٧٨٩")
NO_TIME = ["now", "inf", "", "0", "\ud800", "¹²³", "9" * 5_000, f"{STAMP}.0", f"-{STAMP}", f"+{STAMP}"]
NO_TIME += [f" {STAMP} ", f"{STAMP}\n", f"{STAMP[:4]}_{STAMP[4:]}", hex(int(STAMP)), STAMP.zfill(13)]
NO_TIME += [STAMP.translate(ARABIC)]


def test_an_invalid_timestamp_is_refused_even_if_signed() -> None:
    for stamp in NO_TIME:
        text = f"v0:{stamp}:".encode("utf-8", "replace") + BODY
        digest = hmac.new(SECRET.encode(), text, hashlib.sha256).hexdigest()
        assert not holds(BODY, (SIGNATURE, f"v0={digest}"), (TIMESTAMP, stamp)), stamp[:20]


@given(st.binary(), st.lists(st.tuples(st.sampled_from((SIGNATURE, TIMESTAMP)), st.text()), max_size=4))
def test_arbitrary_input_is_refused_without_an_exception(body: bytes, headers: list[tuple[str, str]]) -> None:
    assert holds(body, *headers) is False


def test_the_failed_check_is_named() -> None:
    failed = SignatureChecker(SECRET, lambda: NOW).failed
    assert failed(BODY, signed()) is None
    for headers in (signed(stamp=shifted(-301)), [(SIGNATURE, GOOD), (TIMESTAMP, "now")]):
        assert failed(BODY, headers) == "time"
    assert failed(EVENT, signed()) == failed(BODY, [(TIMESTAMP, STAMP)]) == "signature"
