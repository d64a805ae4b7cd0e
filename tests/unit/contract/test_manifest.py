"""Tool manifests: what a reviewed file may say, and what follows from it for one call."""

import copy
import json
from typing import Any

import pytest
from pydantic import ValidationError

from countersign import contract
from tests.unit.contract.reading import code_of

PAYMENT = {"id": {"type": "string"}, "currency": {"type": "string"}}
ARGS: dict[str, Any] = {
    "account": {"type": "string"},
    "amount_cents": {"type": "integer"},
    "payment": {"type": "object", "properties": PAYMENT, "additionalProperties": False},
}
OBJECT: dict[str, Any] = {"type": "object", "additionalProperties": False}
REFUND: dict[str, Any] = {"tool": "refund", "title": "Refund money", "args": OBJECT | {"properties": ARGS}}
REFUND |= {"resource": {"type": "Account", "id": "/account"}, "sentence": "Pay {amount_cents} to {account}"}


def manifest(**changed: Any) -> contract.ToolManifest:
    return contract.load_manifest(contract.canonicalize({**REFUND, **changed}))


def test_defaults_are_the_careful_choice() -> None:
    plain = manifest()
    assert (plain.lane, plain.risk, plain.timeout_seconds) == (contract.Lane.STAGED, contract.Risk.MEDIUM, 60)
    assert (plain.idempotent, plain.recheck, plain.may_fail) == (False, False, False)
    assert (plain.aud, plain.probe, plain.compensation) == (None, None, None)


def test_the_constructor_and_the_file_say_the_same() -> None:
    rule = contract.ResourceRule(type="Account", id="/account")
    made = contract.ToolManifest(**{**REFUND, "args": copy.deepcopy(REFUND["args"]), "resource": rule})
    assert (made, made.digest) == (manifest(), manifest().digest)


FULL: dict[str, Any] = {"description": "Pays back.", "lane": "live", "idempotent": True, "recheck": True}
FULL |= {"groups": ["money.out"], "secret": ["/payment/id"], "recipients": ["/account"], "risk": "high"}
FULL |= {"aud": "payments", "timeout_seconds": 5, "probe": "find_refund"}
FULL["compensation"] = {"tool": "cancel", "map": {"id": "result:/id", "of": "args:/payment/id"}}
FULL["money"] = [{"amount": "/amount_cents", "currency": "/payment/currency"}]


EVERY = FULL | {"on_exhausted": "tool"}  # of staged tools alone; `ask` is of live ones alone
EVERY |= {"tool": "refund2", "title": "Refund", "sentence": "Refund {account}"}
EVERY |= {"resource": {"type": "C", "id": "/account"}, "args": REFUND["args"] | {"required": ["account"]}}


@pytest.mark.parametrize("member", EVERY)
def test_every_member_is_in_the_digest(member: str) -> None:
    assert manifest(**{member: EVERY[member]}).digest != manifest().digest


def test_a_full_manifest_survives_a_round_trip() -> None:
    full = manifest(**FULL)
    assert contract.load_manifest(contract.canonicalize(full.to_json())) == full
    assert full.money == (contract.MoneyField(amount="/amount_cents", currency="/payment/currency"),)
    assert full.compensation == contract.CompensationRule(tool="cancel", map=FULL["compensation"]["map"])


def test_a_manifest_is_frozen() -> None:
    with pytest.raises(ValidationError, match="frozen"):
        manifest().tool = "delete_everything"  # type: ignore[misc]


BAD_NAMES = ["../refund", "a//b", "a/.", "..", "mаil", "mail send", "mail\n", "m" * 129, ""]
BAD_VALUES: dict[str, list[Any]] = {
    "tool": BAD_NAMES,
    "idempotent": ["yes", 1],
    "timeout_seconds": [0, 3601, 1.5],
}
BAD_VALUES |= {"title": [""], "aud": [""], "sentence": [""], "lane": ["fast"], "risk": ["none"]}
BAD_VALUES["on_exhausted"] = ["saga", True, None]
UNDECLARED = "names no declared arg"
BROKEN: list[tuple[dict[str, Any], str]] = [
    *(({member: value}, f"{member}:") for member, values in BAD_VALUES.items() for value in values),
    ({"colour": "red"}, "colour: is no member"),
    ({"titel": "Refund"}, "titel: is no member of a manifest; did you mean 'title'?"),
    ({"resource": {"type": "A", "id": "/account", "x": 1}}, "resource/x: is no member"),
    ({"groups": ["a/b"]}, "groups/0:"),
    *(({"ask": ask, "lane": "live"}, "ask:") for ask in ("staged", True)),
    ({"ask": "live"}, "leave out ask"),
    ({"on_exhausted": "tool", "lane": "live"}, "live tool"),
    ({"resource": {"type": "a b", "id": "/account"}}, "resource/type:"),
    ({"resource": {"type": "A", "id": "account"}}, "not a JSON pointer"),
    *(({"resource": {"type": "A", "id": pointer}}, UNDECLARED) for pointer in ("/user", "")),
    *(({name: ["/user"]}, UNDECLARED) for name in ("secret", "recipients")),
    ({"money": [{"amount": "/user", "currency": "const:USD"}]}, "names no declared"),
    ({"sentence": "Pay {user}"}, UNDECLARED),
    ({"sentence": "Pay {account"}, "a lone '{'"),
    ({"compensation": {"tool": "c", "map": {"a": "env:/X"}}}, "not a source"),
    ({"compensation": {"tool": "c", "map": {"a": "args:/user"}}}, "no declared arg"),
]


@pytest.mark.parametrize(("changed", "message"), BROKEN)
def test_an_invalid_manifest_is_refused_with_the_location(changed: dict[str, Any], message: str) -> None:
    with pytest.raises(contract.ManifestError, match="not a tool manifest") as refused:
        manifest(**changed)
    assert refused.value.code == "invalid_manifest"
    assert message in str(refused.value)


@pytest.mark.parametrize("member", ["tool", "title", "args", "resource", "sentence"])
def test_what_a_manifest_must_say(member: str) -> None:
    short = {name: value for name, value in REFUND.items() if name != member}
    with pytest.raises(contract.ManifestError, match=f"{member}: is required"):
        contract.load_manifest(contract.canonicalize(short))


DIALECT = "https://json-schema.org/draft/2020-12/schema"
LIST: dict[str, Any] = {"type": "array"}
OPEN: list[tuple[dict[str, Any], str]] = [
    ({"type": "object"}, "args/properties/account:"),
    ({"properties": {}}, "args/properties/account:"),
    ({"type": ["object", "null"]}, "args/properties/account:"),
    ({**OBJECT, "additionalProperties": True}, "account:"),
    ({**OBJECT, "additionalProperties": {}}, "account:"),
    ({**LIST, "items": {"type": "object"}}, "account/items:"),
    ({"anyOf": [{"type": "object"}]}, "account/anyOf/0:"),
    ({"$ref": "https://attacker.example/s"}, "names no definition"),
    ({"$dynamicRef": "#x"}, "$dynamicRef"),
    *(
        ({"$ref": ref}, f"account: $ref {ref!r}")
        for ref in ("#", "#/$defs", "#/$defs/", "#/definitions/x", 5)
    ),
    # what no walk of the schema meets
    ({"$ref": "#/properties/a/contentSchema"}, "account: $ref '#/properties/a/contentSchema'"),
    *(({"$ref": f"#/$defs/{name}"}, "account: $ref") for name in ("name/const", "name%2Fconst", "na\nme")),
    ({"$ref": "\n#/$defs/name"}, "account: $ref"),
    ({**LIST, "unevaluatedItems": {"type": "string"}}, "account: 'unevaluatedItems' is not allowed"),
    ({**LIST, "items": {"$schema": DIALECT}}, "args/properties/account/items: '$schema' is not allowed"),
    ({"$id": "x"}, "'$id' is not allowed"),
]


@pytest.mark.parametrize(("account", "place"), OPEN)
def test_every_object_refuses_undeclared_members(account: dict[str, Any], place: str) -> None:
    odd = {"a": {"contentSchema": {"type": "object"}}} if "contentSchema" in place else {}
    with pytest.raises(contract.ManifestError) as refused:
        manifest(args={**OBJECT, "properties": {**odd, "account": account}}, sentence="Refund")
    assert place in str(refused.value)


def test_arguments_may_have_names_of_refused_keywords() -> None:
    names = ("$ref", "$schema", "unevaluatedItems", "unevaluatedProperties", "account")
    declared = {name: {"type": "string"} for name in names}
    assert manifest(args={**OBJECT, "properties": declared}, sentence="x")
    assert manifest(args={**OBJECT, "$schema": DIALECT, "properties": declared}, sentence="x")


OTHER_ARGS = [{}, {**OBJECT, "type": "array"}, {"type": "object"}, {**OBJECT, "additionalProperties": {}}]


@pytest.mark.parametrize("args", OTHER_ARGS)
def test_args_are_one_closed_object(args: dict[str, Any]) -> None:
    with pytest.raises(contract.ManifestError, match=r"args must be|args need"):
        manifest(args=args)


def test_an_object_with_free_keys_needs_a_value_schema() -> None:
    labels = {"type": "object", "additionalProperties": {"type": "string"}}
    declared = {"account": {"$ref": "#/$defs/name"}, "labels": labels}
    args = {**OBJECT, "properties": declared, "$defs": {"name": {"type": "string"}}}
    assert manifest(args=args, sentence="Label {account}").properties == {"account", "labels"}


LAX: list[Any] = [
    (b'{"tool":"a","tool":"b"}', "duplicate_key"),
    (b'{"tool":', "not_json"),
    (b"\xef\xbb\xbf{}", "bom"),
    (b'{"args":{"properties":{"__entity":{}}}}', "reserved_key"),
]


@pytest.mark.parametrize(("raw", "code"), LAX)
def test_a_manifest_is_strict_json(raw: bytes, code: str) -> None:
    assert code_of(contract.load_manifest, raw) == code


@pytest.mark.parametrize("raw", [b"[]", b'"refund"', b"null", b"{}"])
def test_a_manifest_is_an_object(raw: bytes) -> None:
    with pytest.raises(contract.ManifestError):
        contract.load_manifest(raw)


def test_args_keep_the_order_their_author_gave_them() -> None:
    args = {**OBJECT, "properties": {"b": {}, "a": {"minimum": 1.0}}}
    raw = json.dumps({**REFUND, "args": args, "sentence": "x"})
    read = contract.load_manifest(raw.replace("/account", "/b").encode())
    assert repr(read.args["properties"]) == "{'b': {}, 'a': {'minimum': 1}}"


RESOURCES: list[Any] = [
    ("/account", {"account": "acc-17"}, contract.Resource("Account", "acc-17")),
    ("/account", {"account": 17}, contract.Resource("Account", "17")),
    ("/payment/id", {"payment": {"id": "p"}}, contract.Resource("Account", "p")),
    ("const:everybody", {}, contract.Resource("Account", "everybody")),
]


@pytest.mark.parametrize(("rule", "args", "resource"), RESOURCES)
def test_the_resource_follows_from_the_args(rule: str, args: Any, resource: contract.Resource) -> None:
    assert manifest(resource={"type": "Account", "id": rule}).resource_of(args) == resource


@pytest.mark.parametrize("value", [None, True, 1.5, "", [], {}, ...])
def test_args_without_a_usable_resource_are_invalid(value: Any) -> None:
    args = {} if value is ... else {"account": value}
    assert code_of(manifest().resource_of, args) == "invalid_args"


SENTENCES: list[Any] = [
    ("Delete", [("Delete", None)]),
    ("{a}", [("a", "/a")]),
    ("To {a}, {/b/0}.", [("To ", None), ("a", "/a"), (", ", None), ("/b/0", "/b/0"), (".", None)]),
    ("{{a}}", [("{a}", None)]),
    ("{{{a}}}", [("{", None), ("a", "/a"), ("}", None)]),
    ("{a/b}", [("a/b", "/a~1b")]),
    ("", []),
]


@pytest.mark.parametrize(("template", "parts"), SENTENCES)
def test_a_sentence_is_cut_into_text_and_pointers(template: str, parts: list[tuple[str, str | None]]) -> None:
    assert contract.split_sentence(template) == tuple(contract.SentencePart(*part) for part in parts)


@pytest.mark.parametrize("template", ["{", "}", "a } b", "{}", "{a{b}}", "{a", "{{a}"])
def test_a_lone_brace_is_refused(template: str) -> None:
    with pytest.raises(contract.ManifestError, match="lone"):
        contract.split_sentence(template)


def test_a_live_tool_may_be_evaluated_before_it_runs() -> None:
    plain, asked = manifest(lane="live"), manifest(lane="live", ask="live")
    assert (plain.evaluates_live, asked.evaluates_live) == (False, True)
    assert "ask" not in plain.to_json()
    assert asked.to_json()["ask"] == "live"
    assert asked.digest != plain.digest == manifest(lane="live", ask=None).digest
