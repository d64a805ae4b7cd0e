"""Both primitives judge every signature alike, also those only the holder of a key can make."""

import hashlib
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from countersign.contract import PublicKey
from countersign.contract import keys as ed25519
from countersign.contract.keys import P, Primitive, Verify, agrees_with_openssl, libsodium, openssl
from tests.counterparts import require

ORDER = 2**252 + 27742317777372353535851937790883648493
Point = tuple[int, int]
NEUTRAL: Point = (0, 1)


def fast() -> Primitive:
    return require("PyNaCl", libsodium(), "pip install 'countersign-sdk[fast]'")


Maker = Callable[[], Primitive]
BOTH = pytest.mark.parametrize("primitive", [lambda: openssl, fast], ids=["openssl", "libsodium"])

# --- RFC 8032 section 5.1 in the plainest way, to make what no honest signer makes

D = -121665 * pow(121666, -1, P) % P


def add(a: Point, b: Point) -> Point:
    crossed = D * a[0] * b[0] * a[1] * b[1] % P
    x = (a[0] * b[1] + b[0] * a[1]) * pow(1 + crossed, -1, P) % P
    return x, (a[1] * b[1] + a[0] * b[0]) * pow(1 - crossed, -1, P) % P


def times(count: int, point: Point) -> Point:
    total = NEUTRAL
    while count:
        total = add(total, point) if count & 1 else total
        point, count = add(point, point), count >> 1
    return total


def even_point(y: int) -> Point:
    square = (y * y - 1) * pow(D * y * y + 1, -1, P) % P
    x = pow(square, (P + 3) // 8, P)
    x = x if (x * x - square) % P == 0 else x * pow(2, (P - 1) // 4, P) % P
    assert (x * x - square) % P == 0
    return (x if x % 2 == 0 else P - x), y


def encoded(point: Point) -> bytes:
    return (point[1] | (point[0] & 1) << 255).to_bytes(32, "little")


BASE = even_point(4 * pow(5, -1, P) % P)
OF_ORDER_8 = even_point(2707385501144840649318225287225658788936804267575313519463743609750303402022)
SECRET = int.from_bytes(hashlib.sha512(bytes(range(32))).digest()[:32], "little") & (1 << 254) - 8 | 1 << 254
KEY = encoded(times(SECRET, BASE))
TEXT = b"hello"


def signed(nonce: int, *, r_part: int = 0, key: bytes = KEY) -> bytes:
    """A signature whose R has `r_part` times a point of order 8 in it."""
    r = encoded(add(times(nonce, BASE), times(r_part, OF_ORDER_8)))
    challenge = int.from_bytes(hashlib.sha512(r + key + TEXT).digest(), "little")
    return r + ((nonce + challenge * SECRET) % ORDER).to_bytes(32, "little")


@BOTH
def test_a_valid_signature_verifies_and_no_bit_can_change(primitive: Maker) -> None:
    verify = primitive()(KEY)
    good = signed(12345)
    assert verify(good, TEXT)
    assert not verify(good, TEXT + b".")
    for bit in range(0, 512, 7):
        changed = bytearray(good)
        changed[bit // 8] ^= 1 << bit % 8
        assert not verify(bytes(changed), TEXT)


@BOTH
def test_a_signature_has_64_bytes_wherever_it_is_cut(primitive: Maker) -> None:
    whole = signed(12345) + TEXT
    assert not any(primitive()(KEY)(whole[:cut], whole[cut:]) for cut in (0, 63, 65))


@BOTH
def test_an_r_outside_the_group_or_of_small_order_is_refused(primitive: Maker) -> None:
    verify = primitive()(KEY)
    for part in range(8):
        assert not verify(signed(0, r_part=part), TEXT)
        assert part == 0 or not verify(signed(12345, r_part=part), TEXT)


@BOTH
def test_an_s_that_is_not_reduced_is_refused(primitive: Maker) -> None:
    good = signed(12345)
    s = int.from_bytes(good[32:], "little")
    for more in range(s + ORDER, 2**256, ORDER):
        assert not primitive()(KEY)(good[:32] + more.to_bytes(32, "little"), TEXT)


@settings(max_examples=40)
@given(st.integers(1, 2**64), st.integers(0, 7), st.integers(0, 7))
def test_both_libraries_agree_on_adversarial_signatures(nonce: int, a_part: int, r_part: int) -> None:
    key = encoded(add(times(SECRET, BASE), times(a_part, OF_ORDER_8)))
    signature = signed(nonce, r_part=r_part, key=key)
    assert openssl(key)(signature, TEXT) == fast()(key)(signature, TEXT)


@given(st.binary(min_size=64, max_size=64), st.binary(max_size=40))
def test_both_libraries_refuse_forged_signatures(signature: bytes, data: bytes) -> None:
    assert not openssl(KEY)(signature, data)
    assert not fast()(KEY)(signature, data)


def _cofactored(key: bytes) -> Verify:
    """What a library that multiplies by the cofactor would do with the probes."""
    strict = openssl(key)
    return lambda signature, data: signature == ed25519._MIXED or strict(signature, data)


def _careless(key: bytes) -> Verify:
    strict = openssl(key)
    return lambda signature, data: signature == ed25519._UNREDUCED or strict(signature, data)


@pytest.mark.parametrize("other", [_cofactored, _careless, lambda key: lambda signature, data: False])
def test_a_library_that_judges_otherwise_is_not_used(other: Primitive) -> None:
    assert agrees_with_openssl(openssl)
    assert not agrees_with_openssl(other)


def test_a_key_verifies_with_the_fastest_primitive_without_a_visible_difference() -> None:
    fast_key, plain_key = PublicKey.from_raw(KEY), PublicKey(None, KEY, primitive=openssl)
    assert fast_key == plain_key
    assert ed25519.FASTEST is openssl or libsodium() is not None
    for signature in (signed(5), signed(0), signed(5, r_part=4)):
        assert fast_key.verify(signature, TEXT) == plain_key.verify(signature, TEXT)
