"""Third-party vectors: RFC 8785, JSONTestSuite, Wycheproof; `tests/vectors/third_party` holds them.

A vector that we answer otherwise than its authors is named here with the reason, and in the README next to them.
"""

import hashlib
import json
import math
import re
import struct
import tarfile
from collections import Counter
from collections.abc import Iterator
from itertools import islice, product
from pathlib import Path
from typing import Any

import pytest

from countersign import contract
from tests.counterparts import require

THIRD_PARTY = Path(__file__).parents[2] / "vectors/third_party"


def _wycheproof(name: str) -> Any:
    return json.loads((THIRD_PARTY / "wycheproof" / name).read_text(encoding="utf-8"))["testGroups"]


@pytest.mark.parametrize("name", ["arrays", "french", "structures", "unicode", "values", "weird"])
def test_the_reference_files_of_rfc8785_are_canonicalised_to_the_byte(name: str) -> None:
    folder = THIRD_PARTY / "jcs/testdata"
    # Not `load`: 1E30 and 333333333.33333329 are refused by admission, and written by RFC 8785 all the same.
    canonical = contract.canonicalize(json.loads((folder / "input" / f"{name}.json").read_bytes()))
    assert canonical == (folder / "output" / f"{name}.json").read_bytes()
    assert canonical == bytes.fromhex((folder / "outhex" / f"{name}.txt").read_text())


def _numbers(recipe: str) -> Iterator[int]:
    """The numbers of RFC 8785: fixed ones, 2,000 adjacent values, then a hash chain."""
    fixed = recipe.partition("staticU64s = ")[2].partition("])")[0]
    yield from (int(number, 16) for number in re.findall(r"0x([0-9a-f]{16})n", fixed))
    yield from range(0x0010_0000_0000_0000, 0x0010_0000_0000_0000 + 2_000)
    block = bytes(32)
    while True:
        block = hashlib.sha256(block).digest()
        for (bits,) in struct.iter_unpack("<Q", block):
            number = _double(bits)
            if number != 0.0 and math.isfinite(number):
                yield bits


def _double(bits: int) -> float:
    number: float = struct.unpack("<d", struct.pack("<Q", bits))[0]
    return number


@pytest.mark.parametrize("lines", [10_000, pytest.param(1_000_000, marks=pytest.mark.long)])
def test_the_numbers_of_rfc8785_have_the_published_checksum(lines: int) -> None:
    recipe = (THIRD_PARTY / "jcs/testdata/README.txt").read_text()
    published = re.search(rf"^\| ([0-9a-f]{{64}}) \| {lines} ", recipe, re.M)
    assert published is not None
    written = hashlib.sha256()
    for bits in islice(_numbers(recipe), lines):
        written.update(b"%x,%s\n" % (bits, contract.canonicalize(_double(bits))))
    assert written.hexdigest() == published.group(1)


# The files of JSONTestSuite that must parse elsewhere and are refused here on purpose: a key that occurs twice, and
# whole numbers beyond 2^53-1.
KEYS_TWICE = ("object_duplicated_key", "object_duplicated_key_and_value")
NUMBERS = ("number", *(f"number_real_{name}" for name in ("capital_e", "exponent", "fraction_exponent")))
REFUSED = {f"y_{name}.json" for name in (*KEYS_TWICE, *NUMBERS, "object_extreme_numbers")}


def _parsing_tests() -> dict[str, bytes]:
    with tarfile.open(THIRD_PARTY / "json/test_parsing.tar.gz") as archive:
        members = [member for member in archive.getmembers() if member.isfile()]
        return {Path(member.name).name: archive.extractfile(member).read() for member in members}  # type: ignore[union-attr]


def _admitted(raw: bytes) -> bool:
    try:
        contract.load(raw)
    except contract.AdmissionError:
        return False
    return True


def test_json_test_suite_is_answered_as_recorded() -> None:
    tests = _parsing_tests()
    admitted = {name for name, raw in tests.items() if _admitted(raw)}
    must_parse, must_not, may = ({name for name in tests if name[0] == kind} for kind in "yni")
    assert (len(tests), len(must_parse), len(must_not)) == (318, 95, 188)
    assert admitted & must_not == set()
    assert must_parse - admitted == REFUSED
    assert not admitted & may, "where readers differ, all is refused"


@pytest.mark.parametrize("fast", [False, True], ids=["openssl", "libsodium"])
def test_ed25519_signatures_are_judged_as_wycheproof_judges_them(fast: bool) -> None:
    primitive: contract.keys.Primitive = contract.keys.openssl
    if fast:
        primitive = require("PyNaCl", contract.keys.libsodium(), "pip install 'countersign-sdk[fast]'")
    judged: Counter[str] = Counter()
    for group in _wycheproof("ed25519_test.json"):
        key = contract.PublicKey(None, bytes.fromhex(group["publicKey"]["pk"]), primitive=primitive)
        for test in group["tests"]:
            good = key.verify(bytes.fromhex(test["sig"]), bytes.fromhex(test["msg"]))
            assert good == (test["result"] == "valid"), test["tcId"]
            judged[test["result"]] += 1
    assert judged == {"valid": 88, "invalid": 63}


def test_no_jws_of_wycheproof_reaches_a_key() -> None:
    """None is signed with Ed25519. The 46 valid ones are the documented exception: a signature of another
    length is another form to us, and where the length agrees (ES256) the payload `foo` is no JSON.
    """

    def no_key(kid: str) -> contract.PublicKey | None:
        raise AssertionError("a key was looked up for a header that is not ours")

    tests = [test for group in _wycheproof("json_web_signature_test.json") for test in group["tests"]]
    assert Counter(test["result"] for test in tests) == {"valid": 46, "invalid": 355}
    codes = set()
    for test in tests:
        with pytest.raises(contract.VerificationError) as refused:
            contract.open_token(test["jws"], typ=contract.TYP_RELEASE, key_for=no_key)
        codes.add((test["result"], refused.value.code))
    assert codes == set(product(("valid", "invalid"), ("not_compact", "not_json")))


def test_no_key_set_of_wycheproof_is_accepted() -> None:
    """RSA, EC, symmetric, mixed, duplicate kid, wrong use: none is a set of Ed25519 signing keys."""
    groups = _wycheproof("json_web_key_test.json")
    sets = [group[member] for group in groups for member in ("public", "private") if group.get(member)]
    assert sets
    for jwks in sets:
        with pytest.raises(contract.BadKeyError):
            contract.KeySet.from_jwks(jwks if "keys" in jwks else {"keys": [{"kid": "x", **jwks}]})


SMALL_ORDER = [
    # the eight points of small order and their other encodings, as libsodium lists them
    "0000000000000000000000000000000000000000000000000000000000000000",
    "0100000000000000000000000000000000000000000000000000000000000000",
    "26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc05",
    "c7176a703d4dd84fba3c0b760d10670f2a2053fa2c39ccc64ec7fd7792ac037a",
    "ecffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
    "edffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
    "eeffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
]


@pytest.mark.parametrize("encoded", SMALL_ORDER)
@pytest.mark.parametrize("sign_bit", [0, 0x80])
def test_a_key_of_small_order_is_refused(encoded: str, sign_bit: int) -> None:
    raw = bytearray.fromhex(encoded)
    raw[31] |= sign_bit
    with pytest.raises(contract.ContractError, match="not a sound point"):
        contract.PublicKey.from_raw(bytes(raw))
