"""Values: what admission lets in or refuses, canonical bytes, and every name of design section 6.

Raw texts are given as `pieces`, a list of [hex, count] to be repeated and joined, so that hostile ones stay
small.
"""

import hashlib
from typing import Any

from countersign import contract
from countersign.contract import digests as labels

from . import world

Case = dict[str, Any]


def _raw(*pieces: bytes | tuple[bytes, int]) -> list[list[Any]]:
    return [[piece.hex(), 1] if isinstance(piece, bytes) else [piece[0].hex(), piece[1]] for piece in pieces]


REFUSED: dict[str, tuple[str, list[list[Any]]]] = {
    "empty": ("not_json", []),
    "only_space": ("not_json", _raw(b"  ")),
    "two_values": ("not_json", _raw(b"1 2")),
    "trailing_comma": ("not_json", _raw(b"[1,]")),
    "comment": ("not_json", _raw(b"/* x */ 1")),
    "single_quotes": ("not_json", _raw(b"{'a':1}")),
    "control_character_in_string": ("not_json", _raw(b'"\n"')),
    "unterminated_string": ("not_json", _raw(b'"abc')),
    "leading_zero": ("not_json", _raw(b"01")),
    "plus_sign": ("not_json", _raw(b"+1")),
    "hexadecimal": ("not_json", _raw(b"0x10")),
    "no_break_space": ("not_json", _raw("\u00a01".encode())),
    "duplicate_key": ("duplicate_key", _raw(b'{"a":1,"a":1}')),
    "duplicate_key_escaped": ("duplicate_key", _raw(b'{"a":1,"\\u0061":2}')),
    "duplicate_key_deep": ("duplicate_key", _raw(b'[{"x":{"b":1,"b":2}}]')),
    "reserved_entity": ("reserved_key", _raw(b'{"__entity":{"type":"User","id":"root"}}')),
    "reserved_extn": ("reserved_key", _raw(b'{"a":[{"__extn":{"fn":"ip","arg":"::1"}}]}')),
    "reserved_expr": ("reserved_key", _raw(b'{"__expr":"User::\\"root\\""}')),
    "reserved_escaped": ("reserved_key", _raw(b'{"\\u005f_entity":1}')),
    "lone_high_surrogate": ("lone_surrogate", _raw(b'"\\ud800"')),
    "lone_low_surrogate": ("lone_surrogate", _raw(b'["\\uDC00"]')),
    "swapped_surrogates": ("lone_surrogate", _raw(b'"\\udc00\\ud800"')),
    "lone_surrogate_in_key": ("lone_surrogate", _raw(b'{"\\uDAAA":1}')),
    "nan": ("not_finite", _raw(b"NaN")),
    "infinity": ("not_finite", _raw(b"[Infinity]")),
    "minus_infinity": ("not_finite", _raw(b"-Infinity")),
    "overflowing_float": ("not_finite", _raw(b"1E400")),
    "integer_2_to_53": ("integer_out_of_range", _raw(b"9007199254740992")),
    "integer_minus_2_to_53": ("integer_out_of_range", _raw(b"-9007199254740992")),
    "integer_2_to_53_plus_1": ("integer_out_of_range", _raw(b"9007199254740993")),
    "integer_10_to_30": ("integer_out_of_range", _raw(b"1", (b"0", 30))),
    "integer_of_4301_digits": ("integer_out_of_range", _raw((b"9", 4301))),
    "integer_of_200000_digits": ("integer_out_of_range", _raw((b"9", 200_000))),
    "whole_float_2_to_53": ("integer_out_of_range", _raw(b"9007199254740992.0")),
    "whole_float_1e20": ("integer_out_of_range", _raw(b"1e20")),
    "whole_float_1e21": ("integer_out_of_range", _raw(b"1e21")),
    "whole_float_1e30": ("integer_out_of_range", _raw(b'{"amount":1E30}')),
    "whole_float_minus_1e21": ("integer_out_of_range", _raw(b"-1E+21")),
    "whole_float_10_to_16": ("integer_out_of_range", _raw(b"[1.0e16]")),
    "whole_float_largest_double": ("integer_out_of_range", _raw(b"1.7976931348623157e308")),
    "whole_float_spelled_with_zeros": ("integer_out_of_range", _raw(b"0.1", (b"0", 100_000), b"e22")),
    "whole_float_fraction_lost": ("integer_out_of_range", _raw(b"9007199254740993.5")),
    "inexact_underflow": ("number_not_exact", _raw(b"1e-400")),
    "inexact_huge_negative_exponent": ("number_not_exact", _raw(b"-1e-", (b"9", 100_000))),
    "inexact_next_to_an_integer": ("number_not_exact", _raw(b"9007199254740990.6")),
    "inexact_largest_integer_and_a_bit": ("number_not_exact", _raw(b"9007199254740991.4")),
    "inexact_digits_beyond_a_double": ("number_not_exact", _raw(b"0.1000000000000000055511151231257827")),
    "inexact_hundred_thousand_digits": ("number_not_exact", _raw(b"0.", (b"3", 100_000))),
    "inexact_rfc8785_number": ("number_not_exact", _raw(b"333333333.33333329")),
    "inexact_subnormal": ("number_not_exact", _raw(b"4.94e-324")),
    "bom": ("bom", _raw(b"\xef\xbb\xbf{}")),
    "utf16": ("not_utf8", _raw("{}".encode("utf-16"))),
    "utf16_without_mark": ("not_json", _raw("{}".encode("utf-16-le"))),
    "latin1": ("not_utf8", _raw(b'"\xe9"')),
    "overlong_slash": ("not_utf8", _raw(b'"\xc0\xaf"')),
    "encoded_surrogate": ("not_utf8", _raw(b'"\xed\xa0\x80"')),
    "above_unicode": ("not_utf8", _raw(b'"\xf4\x90\x80\x80"')),
    "too_large": ("too_large", _raw(b'"', (b"a", 262_143), b'"')),
    "too_large_ten_megabytes": ("too_large", _raw(b'"', (b"a", 10_000_000), b'"')),
    "depth_65": ("too_deep", _raw((b"[", 65), (b"]", 65))),
    "depth_65_of_objects": ("too_deep", _raw((b'{"a":', 65), b"1", (b"}", 65))),
    "depth_100000": ("too_deep", _raw((b"[", 100_000))),
    "depth_100000_closed": ("too_deep", _raw((b"[", 100_000), (b"]", 100_000))),
    "nodes_10001": ("too_many_nodes", _raw(b"[", (b"1,", 9_999), b"1]")),
    "nodes_10001_of_objects": ("too_many_nodes", _raw(b"[", (b"{},", 9_999), b"{}]")),
    "nodes_10001_by_nesting": ("too_many_nodes", _raw(b"[", (b"[[1]],", 3_333), b"1]")),
    "nodes_of_empty_arrays": ("too_many_nodes", _raw(b"[", (b"[],", 60_000), b"[]]")),
    "unterminated_string_of_quotes": ("not_json", _raw(b'"', (b'\\"', 100_000))),
}

ADMITTED: dict[str, bytes] = {
    "null": b"null",
    "scalars": b'[true,false,null,0,-1,1.5,"x"]',
    "largest_integer": b"9007199254740991",
    "smallest_integer": b"-9007199254740991",
    "whole_float_is_an_integer": b"[1.0,1e0,100e-2,-0.0,-0,0.0,9007199254740991.0]",
    "floats": b"[0.1,1e-7,0.000001,2.2250738585072014e-308,5e-324,333333333.3333333,0.30000000000000004,-1.5E-5]",
    "zero_in_any_spelling": b"[0e5,-0.0e-5,0.000,0E99999999999999999999999,-0e0]",
    "exact_in_another_spelling": b"[0.1000000000000000000000,15e-1,1.50E0,1000000000000000e-15,90071992547409910e-1]",
    "surrogate_pair": b'"\\ud83d\\ude00"',
    "noncharacters_and_nul": '["\\u0000","\uffff","\U0010ffff","\ufdd0"]'.encode(),
    "nfc_and_nfd_stay_apart": '{"\u00e9":1,"e\u0301":2}'.encode(),
    "keys_beyond_the_bmp": '{"\U0001f600":1,"\ufb33":2,"\u20ac":3,"\\r":4,"1":5,"\u00f6":7}'.encode(),
    "escapes": b'"\\u0000\\u0007\\b\\t\\n\\u000b\\f\\r\\u001b\\u001f\\"\\\\\\/\\u007f\\u0080\\u2028"',
    "white_space": b' {\t"b" :\r\n[ ] , "a" : { } } ',
    "empty_key": b'{"":0}',
    "reserved_words_as_values": b'["__entity","__extn","__expr"]',
    "reserved_words_in_longer_keys": b'{"__entity_":1,"_entity":2,"__ENTITY":3}',
}

ADMITTED_IN_PIECES: dict[str, list[list[Any]]] = {
    "largest": _raw(b'"', (b"a", 262_142), b'"'),
    "depth_64": _raw((b"[", 64), (b"]", 64)),
    "depth_64_of_many": _raw((b"[", 63), b"[],[]", (b"]", 63)),
    "brackets_in_strings": _raw(b'["', (b"[{", 200), b'"]'),
    "nodes_10000": _raw(b"[", (b"1,", 9_998), b"1]"),
    "nodes_10000_of_empty_arrays": _raw(b"[", (b"[],", 9_998), b"[]]"),
}


_TEXT = {"type": "string"}
_PROPERTIES = {"account": _TEXT, "amount_cents": {"type": "integer", "minimum": 1}, "note": _TEXT}
_OBJECT = {"type": "object", "additionalProperties": False}
MANIFEST: dict[str, Any] = {"tool": "refund", "title": "Refund a customer", "risk": "high"}
MANIFEST |= {"args": {**_OBJECT, "properties": _PROPERTIES, "required": ["account", "amount_cents"]}}
MANIFEST |= {
    "resource": {"type": "Account", "id": "/account"},
    "sentence": "Refund {amount_cents} to {account}",
}
MANIFEST |= {"compensation": {"tool": "cancel_refund", "map": {"refund": "result:/refund_id"}}}
MANIFEST |= {"money": [{"amount": "/amount_cents", "currency": "const:USD"}]}


def _cases(about: str, cases: list[Case], **more: Any) -> dict[str, Any]:
    return {"about": about, "cases": cases, **more}


def admission() -> dict[str, Any]:
    """admission/*.json"""
    refused = [{"name": name, "pieces": raw, "code": code} for name, (code, raw) in REFUSED.items()]
    admitted = [_admitted(name, _raw(raw)) for name, raw in ADMITTED.items()]
    large = [_admitted(name, pieces) for name, pieces in ADMITTED_IN_PIECES.items()]
    at_limits = "Bytes at the limits, which strict admission lets in, and SHA-256 of their canonical bytes."
    let_in = "Bytes strict admission lets in, and the canonical bytes of what they hold."
    return {
        "admission/refused.json": _cases("Bytes strict admission refuses, with the code.", refused),
        "admission/admitted.json": _cases(let_in, admitted),
        "admission/admitted_large.json": _cases(at_limits, large),
    }


def _admitted(name: str, pieces: list[list[Any]]) -> Case:
    canonical = contract.canonicalize(contract.load(_joined(pieces)))
    short = {"canonical_hex": canonical.hex()} if name in ADMITTED else {}
    digest = hashlib.sha256(canonical).hexdigest()
    return {"name": name, "pieces": pieces, **short, "canonical_sha256": digest}


def _joined(pieces: list[list[Any]]) -> bytes:
    return b"".join(bytes.fromhex(piece) * count for piece, count in pieces)


def canonical() -> dict[str, Any]:
    """canonical/*.json: the number table of RFC 8785 appendix B, strings and sorting."""
    pairs = zip(_APPENDIX_B[::2], _APPENDIX_B[1::2], strict=True)
    numbers = [{"ieee754": ieee, "canonical": text} for ieee, text in pairs]
    keys = "\u20ac \r \ufb33 1 \U0001f600 \u0080 \u00f6  a A aa \ud7ff \ue000".split(" ")
    sorting = {key: index for index, key in enumerate(keys)}
    characters = [chr(code) for code in [*range(0x20), 0x22, 0x2F, 0x5C, 0x7F, 0x80, 0x2028, 0xFFFE, 0x1F600]]
    texts = [{"text": text, "canonical_hex": contract.canonicalize(text).hex()} for text in characters]
    doubles = "Doubles as 16 hex digits and their canonical text (RFC 8785 appendix B)."
    strings = "One character each, and its canonical text (RFC 8785 section 3.2.2.2)."
    sorted_keys: dict[str, Any] = {"value": sorting, "canonical_hex": contract.canonicalize(sorting).hex()}
    sorted_keys["about"] = "Keys are sorted by UTF-16 unit (RFC 8785 section 3.2.3)."
    files = {"canonical/numbers.json": _cases(doubles, numbers), "canonical/sorting.json": sorted_keys}
    return files | {"canonical/strings.json": _cases(strings, texts)}


_APPENDIX_B = """
0000000000000000 0    8000000000000000 0    0000000000000001 5e-324    8000000000000001 -5e-324
7fefffffffffffff 1.7976931348623157e+308    ffefffffffffffff -1.7976931348623157e+308
4340000000000000 9007199254740992           c340000000000000 -9007199254740992
4430000000000000 295147905179352830000      44b52d02c7e14af5 9.999999999999997e+22
44b52d02c7e14af6 1e+23                      44b52d02c7e14af7 1.0000000000000001e+23
444b1ae4d6e2ef4e 999999999999999700000      444b1ae4d6e2ef4f 999999999999999900000
444b1ae4d6e2ef50 1e+21                      3eb0c6f7a0b5ed8c 9.999999999999997e-7
3eb0c6f7a0b5ed8d 0.000001                   41b3de4355555553 333333333.3333332
41b3de4355555554 333333333.33333325         41b3de4355555555 333333333.3333333
41b3de4355555556 333333333.3333334          41b3de4355555557 333333333.33333343
becbf647612f3696 -0.0000033333333333333333  43143ff3c1cb0959 1424953923781206.2
""".split()

_ARGS = {"amount_cents": 124000, "account": "acc-17"}
_PLACE = {"agent": world.AGENT, "run_key": world.RUN_KEY}


def _named(label: bytes, digest: str, value: Any, about: str) -> Case:
    text = contract.canonicalize(value)
    if hashlib.sha256(label + text).hexdigest() != digest:
        raise AssertionError(f"{about}: the digest does not cover what this file says it covers")
    return {"about": about, "value": value, "canonical": text.decode(), "digest": digest}


def _call(args: Any, n: int, about: str, agent: str = world.AGENT, run_key: str = world.RUN_KEY) -> Case:
    value = {"agent": agent, "run_key": run_key, "tool": "refund", "args": args, "n": n}
    digest = contract.call_key(agent=agent, run_key=run_key, tool="refund", args=args, n=n)
    return _named(labels.CALL_LABEL, digest, value, about)


def _names_of_calls() -> dict[str, tuple[bytes, list[Case]]]:
    key = contract.call_key(**_PLACE, tool="refund", args=_ARGS)
    independent = {**_PLACE, "call_key": key}
    undo = {"effect_id": world.REFUND.effect_id, "tool": "cancel_refund"}
    here = {"txn": world.TXN, "call_key": key}
    calls = [
        _call(_ARGS, 0, "a call"),
        _call(_ARGS, 1, "an intended repeat of it in the same run"),
        _call({**_ARGS, "amount_cents": 124001}, 0, "one cent more is another call"),
        _call(_ARGS, 0, "another run key is another call", run_key="ticket-4712"),
        _call(_ARGS, 0, "another agent's same words are another call", agent="other-bot"),
    ]
    of_txns = [(contract.txn_id(**_PLACE), _PLACE, "a transaction")]
    of_txns += [(contract.independent_txn_id(**independent), independent, "an independent effect's")]
    of_undo = (contract.compensation_call_key(**undo), undo, "the call that takes an effect back")
    of_effect = (contract.effect_id(**here), here, "an effect of a transaction")
    return {
        "call_key": (labels.CALL_LABEL, calls),
        "txn_id": _all_named(labels.TXN_ID_LABEL, of_txns),
        "effect_id": _all_named(labels.EFFECT_ID_LABEL, [of_effect]),
        "compensation_call_key": _all_named(labels.COMPENSATE_LABEL, [of_undo]),
    }


def _all_named(label: bytes, those: list[tuple[str, Any, str]]) -> tuple[bytes, list[Case]]:
    return label, [_named(label, *one) for one in those]


def _names_of_values() -> dict[str, tuple[bytes, list[Case]]]:
    every_type = {"x": [1, 1.5, None, True, "für Zoë \U0001f600"]}
    args = [({}, "no args"), (_ARGS, "two args"), (every_type, "every type")]
    effects = [(world.REFUND, "with compensation"), (world.MAIL, "without compensation")]
    effects += [(world.COMPENSATING, "a compensating effect")]
    both = [world.REFUND.digest, world.MAIL.digest]
    lists = [(both, "two effects"), (both[::-1], "reordered"), (both[:1], "one dropped")]
    of_args = [(contract.args_digest(args=value), value, about) for value, about in args]
    of_effects = [(effect.digest, world.effect_json(effect), about) for effect, about in effects]
    of_lists = [(contract.txn_digest(effect_digests=some), some, about) for some, about in lists]
    return {
        "args_digest": _all_named(labels.ARGS_LABEL, of_args),
        "effect_digest": _all_named(labels.EFFECT_LABEL, of_effects),
        "txn_digest": _all_named(labels.TXN_LABEL, of_lists),
    }


def _manifests() -> dict[str, Any]:
    shipped = contract.load_manifest(contract.canonicalize(MANIFEST))
    defaults = {"lane": "staged", "idempotent": False, "groups": [], "timeout_seconds": 60, "aud": None}
    explicit = {**MANIFEST, **defaults}
    if contract.load_manifest(contract.canonicalize(explicit)).digest != shipped.digest:
        raise AssertionError("a default written out changed the digest")
    covered = shipped.to_json()
    cases = [
        {"manifest": manifest, **_named(labels.TOOL_LABEL, contract.tool_digest(covered), covered, about)}
        for about, manifest in (("as written", MANIFEST), ("with defaults written out", explicit))
    ]
    about = "A tool manifest's digest covers it without the members that equal their default."
    return _cases(about, cases, label=labels.TOOL_LABEL.decode())


def names() -> dict[str, Any]:
    """names/*.json"""
    about = "digest = SHA-256(label + canonical), lower-case hex; canonical = JCS(value)."
    named = {**_names_of_calls(), **_names_of_values()}
    files = {f"names/{name}.json": _cases(about, its, label=at.decode()) for name, (at, its) in named.items()}
    texts = ("", "{}", '{"a":"Zoë"}')
    bodies = [{"body": text, "digest": contract.body_digest(text.encode())} for text in texts]
    of_bodies = "digest = base64url without padding of SHA-256(body), as `bd` of a proof carries it."
    tools = {"names/tool_digest.json": _manifests()}
    return files | tools | {"names/body_digest.json": _cases(of_bodies, bodies)}
