"""Tool manifests: what a reviewed file may say, and what follows from it for one call."""

import copy
import json
from typing import Any

import pytest
from pydantic import ValidationError

from countersign.contract import (
    AdmissionError,
    CompensationRule,
    Lane,
    ManifestError,
    MoneyField,
    Resource,
    ResourceRule,
    Risk,
    SentencePart,
    ToolManifest,
    canonicalize,
    load_manifest,
    split_sentence,
)

REFUND: dict[str, Any] = {
    "tool": "refund",
    "title": "Refund a customer",
    "args": {
        "type": "object",
        "properties": {
            "account": {"type": "string"},
            "amount_cents": {"type": "integer"},
            "payment": {
                "type": "object",
                "properties": {"id": {"type": "string"}, "currency": {"type": "string"}},
                "additionalProperties": False,
            },
        },
        "additionalProperties": False,
    },
    "resource": {"type": "Account", "id": "/account"},
    "sentence": "Refund {amount_cents} to {account}",
}


def manifest(**changed: Any) -> ToolManifest:
    return load_manifest(canonicalize({**REFUND, **changed}))


def test_defaults_are_the_careful_choice() -> None:
    plain = manifest()
    assert plain.lane is Lane.STAGED
    assert plain.risk is Risk.MEDIUM
    assert not plain.idempotent
    assert not plain.recheck
    assert not plain.may_fail
    assert (plain.timeout_seconds, plain.aud, plain.probe, plain.compensation) == (60, None, None, None)


def test_the_constructor_and_the_file_say_the_same() -> None:
    made = ToolManifest(
        tool="refund",
        title="Refund a customer",
        args=copy.deepcopy(REFUND["args"]),
        resource=ResourceRule(type="Account", id="/account"),
        sentence=REFUND["sentence"],
    )
    assert made == manifest()
    assert made.digest == manifest().digest


FULL: dict[str, Any] = {
    "description": "Sends money back.",
    "lane": "live",
    "idempotent": True,
    "compensation": {"tool": "cancel", "map": {"id": "result:/id", "of": "args:/payment/id"}},
    "groups": ["money.out"],
    "secret": ["/payment/id"],
    "risk": "high",
    "money": [{"amount": "/amount_cents", "currency": "/payment/currency"}],
    "recipients": ["/account"],
    "aud": "payments",
    "timeout_seconds": 5,
    "recheck": True,
    "probe": "find_refund",
}


EVERY: dict[str, Any] = FULL | {
    "on_exhausted": "tool",  # of staged tools alone; `ask` is of live ones alone
    "tool": "refund2",
    "title": "Refund",
    "sentence": "Refund {account}",
    "resource": {"type": "Customer", "id": "/account"},
    "args": {**REFUND["args"], "required": ["account"]},
}


@pytest.mark.parametrize("member", EVERY)
def test_every_member_is_in_the_digest(member: str) -> None:
    assert manifest(**{member: EVERY[member]}).digest != manifest().digest


def test_a_full_manifest_survives_a_round_trip() -> None:
    full = manifest(**FULL)
    assert load_manifest(canonicalize(full.to_json())) == full
    assert full.money == (MoneyField(amount="/amount_cents", currency="/payment/currency"),)
    assert full.compensation == CompensationRule(tool="cancel", map=FULL["compensation"]["map"])


def test_a_manifest_is_frozen() -> None:
    with pytest.raises(ValidationError, match="frozen"):
        manifest().tool = "delete_everything"  # type: ignore[misc]


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        pytest.param({"colour": "red"}, "colour: is no member", id="unknown member"),
        pytest.param(
            {"titel": "Refund"}, "titel: is no member of a manifest; did you mean 'title'?", id="misspelt"
        ),
        pytest.param(
            {"resource": {"type": "A", "id": "/account", "x": 1}},
            "resource/x: is no member",
            id="unknown inside",
        ),
        pytest.param({"tool": "../refund"}, "tool:", id="tool name a path"),
        pytest.param({"tool": "a//b"}, "tool:", id="tool name with nothing between slashes"),
        pytest.param({"tool": "a/."}, "tool:", id="tool name that ends in a dot segment"),
        pytest.param({"tool": ".."}, "tool:", id="tool name of dots"),
        pytest.param({"tool": "mаil"}, "tool:", id="tool name with a Cyrillic letter"),
        pytest.param({"tool": "mail send"}, "tool:", id="tool name with a space"),
        pytest.param({"tool": "mail\n"}, "tool:", id="tool name with a line break"),
        pytest.param({"tool": "m" * 129}, "tool:", id="tool name too long"),
        pytest.param({"groups": ["a/b"]}, "groups/0:", id="group name with a slash"),
        pytest.param({"tool": ""}, "tool:", id="empty name"),
        pytest.param({"title": ""}, "title:", id="empty title"),
        pytest.param({"lane": "fast"}, "lane:", id="unknown lane"),
        pytest.param({"risk": "none"}, "risk:", id="unknown risk"),
        pytest.param({"idempotent": "yes"}, "idempotent:", id="text for a flag"),
        pytest.param({"idempotent": 1}, "idempotent:", id="number for a flag"),
        pytest.param({"on_exhausted": "saga"}, "on_exhausted:", id="an end there is none of"),
        pytest.param({"on_exhausted": True}, "on_exhausted:", id="flag for an end"),
        pytest.param({"on_exhausted": None}, "on_exhausted:", id="nothing for an end"),
        pytest.param({"ask": "staged", "lane": "live"}, "ask:", id="a question there is none of"),
        pytest.param({"ask": True, "lane": "live"}, "ask:", id="flag for a question"),
        pytest.param({"ask": "live"}, "leave out ask", id="a staged tool that is asked about live"),
        pytest.param({"timeout_seconds": 0}, "timeout_seconds:", id="no time"),
        pytest.param({"timeout_seconds": 3601}, "timeout_seconds:", id="too much time"),
        pytest.param({"timeout_seconds": 1.5}, "timeout_seconds:", id="part of a second"),
        pytest.param({"aud": ""}, "aud:", id="empty audience"),
        pytest.param({"resource": {"type": "a b", "id": "/account"}}, "resource/type:", id="no entity type"),
        pytest.param({"resource": {"type": "A", "id": "account"}}, "not a JSON pointer", id="no pointer"),
        pytest.param(
            {"resource": {"type": "A", "id": "/user"}}, "names no declared arg", id="undeclared arg"
        ),
        pytest.param({"resource": {"type": "A", "id": ""}}, "names no declared arg", id="the whole args"),
        pytest.param({"secret": ["/user"]}, "names no declared arg", id="undeclared secret"),
        pytest.param({"recipients": ["/user"]}, "names no declared arg", id="undeclared recipient"),
        pytest.param(
            {"money": [{"amount": "/user", "currency": "const:USD"}]}, "names no declared", id="money"
        ),
        pytest.param({"sentence": "Pay {user}"}, "names no declared arg", id="undeclared in the sentence"),
        pytest.param({"sentence": "Pay {account"}, "a lone '{'", id="open brace"),
        pytest.param({"sentence": ""}, "sentence:", id="no sentence"),
        pytest.param(
            {"compensation": {"tool": "c", "map": {"a": "env:/X"}}}, "not a source", id="unknown source"
        ),
        pytest.param(
            {"compensation": {"tool": "c", "map": {"a": "args:/user"}}}, "no declared arg", id="bad source"
        ),
    ],
)
def test_a_manifest_that_breaks_a_rule_is_refused_and_told_where(changed: dict[str, Any], told: str) -> None:
    with pytest.raises(ManifestError, match="not a tool manifest") as refused:
        manifest(**changed)
    assert refused.value.code == "invalid_manifest"
    assert told in str(refused.value)


@pytest.mark.parametrize("member", ["tool", "title", "args", "resource", "sentence"])
def test_what_a_manifest_must_say(member: str) -> None:
    short = {name: value for name, value in REFUND.items() if name != member}
    with pytest.raises(ManifestError, match=f"{member}: is required"):
        load_manifest(canonicalize(short))


OBJECT: dict[str, Any] = {"type": "object", "additionalProperties": False}


@pytest.mark.parametrize(
    ("properties", "place"),
    [
        pytest.param({"account": {"type": "object"}}, "args/properties/account:", id="open object"),
        pytest.param({"account": {"properties": {}}}, "args/properties/account:", id="open without a type"),
        pytest.param({"account": {"type": ["object", "null"]}}, "args/properties/account:", id="open union"),
        pytest.param({"account": {**OBJECT, "additionalProperties": True}}, "account:", id="true"),
        pytest.param({"account": {**OBJECT, "additionalProperties": {}}}, "account:", id="any schema"),
        pytest.param(
            {"account": {"type": "array", "items": {"type": "object"}}}, "account/items:", id="in a list"
        ),
        pytest.param({"account": {"anyOf": [{"type": "object"}]}}, "account/anyOf/0:", id="in a choice"),
        pytest.param(
            {"account": {"$ref": "https://attacker.example/s"}}, "names no definition", id="remote $ref"
        ),
        pytest.param({"account": {"$dynamicRef": "#x"}}, "$dynamicRef", id="dynamic reference"),
        pytest.param({"account": {"$ref": "#"}}, "account: $ref '#'", id="the whole document"),
        pytest.param({"account": {"$ref": "#/$defs"}}, "account: $ref '#/$defs'", id="no one definition"),
        pytest.param({"account": {"$ref": "#/$defs/"}}, "account: $ref '#/$defs/'", id="no name"),
        pytest.param({"account": {"$ref": "#/definitions/name"}}, "$ref '#/definitions/name'", id="old form"),
        pytest.param(
            {"a": {"contentSchema": {"type": "object"}}, "account": {"$ref": "#/properties/a/contentSchema"}},
            "account: $ref '#/properties/a/contentSchema'",
            id="what no walk of the schema meets",
        ),
        pytest.param({"account": {"$ref": "#/$defs/name/const"}}, "account: $ref", id="inside a definition"),
        pytest.param(
            {"account": {"$ref": "#/$defs/name%2Fconst"}}, "account: $ref", id="a slash in disguise"
        ),
        pytest.param({"account": {"$ref": "#/$defs/na\nme"}}, "account: $ref", id="a line break in a name"),
        pytest.param({"account": {"$ref": "\n#/$defs/name"}}, "account: $ref", id="a line break before it"),
        pytest.param({"account": {"$ref": 5}}, "account: $ref 5", id="a number for a reference"),
        pytest.param(
            {"account": {"type": "array", "unevaluatedItems": {"type": "string"}}},
            "args/properties/account: 'unevaluatedItems' is not allowed",
            id="unevaluated items",
        ),
        pytest.param(
            {
                "account": {
                    "type": "array",
                    "items": {"$schema": "https://json-schema.org/draft/2020-12/schema"},
                }
            },
            "args/properties/account/items: '$schema' is not allowed",
            id="another dialect inside",
        ),
        pytest.param({"account": {"$id": "x"}}, "'$id' is not allowed", id="own id"),
    ],
)
def test_no_object_takes_what_nobody_declared(properties: dict[str, Any], place: str) -> None:
    with pytest.raises(ManifestError) as refused:
        manifest(args={**OBJECT, "properties": properties}, sentence="Refund")
    assert place in str(refused.value)


def test_arguments_may_be_called_as_what_is_refused() -> None:
    declared = {
        name: {"type": "string"} for name in ("$ref", "$schema", "unevaluatedItems", "unevaluatedProperties")
    }
    assert manifest(args={**OBJECT, "properties": {**declared, "account": {"type": "string"}}}, sentence="x")


def test_the_dialect_stands_at_the_top() -> None:
    dialect = "https://json-schema.org/draft/2020-12/schema"
    assert manifest(
        args={**OBJECT, "$schema": dialect, "properties": {"account": {"type": "string"}}}, sentence="x"
    )


@pytest.mark.parametrize(
    "args", [{}, {**OBJECT, "type": "array"}, {"type": "object"}, {**OBJECT, "additionalProperties": {}}]
)
def test_args_are_one_closed_object(args: dict[str, Any]) -> None:
    with pytest.raises(ManifestError, match=r"args must be|args need"):
        manifest(args=args)


def test_an_object_with_free_keys_says_what_their_values_are() -> None:
    labels = {"type": "object", "additionalProperties": {"type": "string"}}
    declared = {"account": {"$ref": "#/$defs/name"}, "labels": labels}
    args = {**OBJECT, "properties": declared, "$defs": {"name": {"type": "string"}}}
    assert manifest(args=args, sentence="Label {account}").properties == {"account", "labels"}


@pytest.mark.parametrize(
    ("raw", "code"),
    [
        (b'{"tool":"a","tool":"b"}', "duplicate_key"),
        (b'{"tool":', "not_json"),
        (b"\xef\xbb\xbf{}", "bom"),
        (b'{"args":{"properties":{"__entity":{}}}}', "reserved_key"),
    ],
)
def test_a_manifest_is_strict_json(raw: bytes, code: str) -> None:
    with pytest.raises(AdmissionError) as refused:
        load_manifest(raw)
    assert refused.value.code == code


@pytest.mark.parametrize("raw", [b"[]", b'"refund"', b"null", b"{}"])
def test_a_manifest_is_an_object(raw: bytes) -> None:
    with pytest.raises(ManifestError):
        load_manifest(raw)


def test_args_keep_the_order_their_author_gave_them() -> None:
    raw = json.dumps(
        {**REFUND, "args": {**OBJECT, "properties": {"b": {}, "a": {"minimum": 1.0}}}, "sentence": "x"}
    )
    read = load_manifest(raw.replace("/account", "/b").encode())
    assert repr(read.args["properties"]) == "{'b': {}, 'a': {'minimum': 1}}"


@pytest.mark.parametrize(
    ("rule", "args", "resource"),
    [
        ("/account", {"account": "acc-17"}, Resource("Account", "acc-17")),
        ("/account", {"account": 17}, Resource("Account", "17")),
        ("/payment/id", {"payment": {"id": "p"}}, Resource("Account", "p")),
        ("const:everybody", {}, Resource("Account", "everybody")),
    ],
)
def test_the_resource_follows_from_the_args(rule: str, args: Any, resource: Resource) -> None:
    assert manifest(resource={"type": "Account", "id": rule}).resource_of(args) == resource


@pytest.mark.parametrize("value", [None, True, 1.5, "", [], {}, ...])
def test_args_without_a_usable_resource_are_invalid(value: Any) -> None:
    args = {} if value is ... else {"account": value}
    with pytest.raises(ManifestError) as refused:
        manifest().resource_of(args)
    assert refused.value.code == "invalid_args"


@pytest.mark.parametrize(
    ("template", "parts"),
    [
        ("Delete", [("Delete", None)]),
        ("{a}", [("a", "/a")]),
        ("To {a}, {/b/0}.", [("To ", None), ("a", "/a"), (", ", None), ("/b/0", "/b/0"), (".", None)]),
        ("{{a}}", [("{a}", None)]),
        ("{{{a}}}", [("{", None), ("a", "/a"), ("}", None)]),
        ("{a/b}", [("a/b", "/a~1b")]),
        ("", []),
    ],
)
def test_a_sentence_is_cut_into_text_and_pointers(template: str, parts: list[tuple[str, str | None]]) -> None:
    assert split_sentence(template) == tuple(SentencePart(*part) for part in parts)


@pytest.mark.parametrize("template", ["{", "}", "a } b", "{}", "{a{b}}", "{a", "{{a}"])
def test_a_lone_brace_is_refused(template: str) -> None:
    with pytest.raises(ManifestError, match="lone"):
        split_sentence(template)


def test_a_live_tool_may_be_asked_about_before_it_runs() -> None:
    plain, asked = manifest(lane="live"), manifest(lane="live", ask="live")
    assert (plain.asks_live, asked.asks_live) == (False, True)
    assert "ask" not in plain.to_json()
    assert asked.to_json()["ask"] == "live"
    assert asked.digest != plain.digest == manifest(lane="live", ask=None).digest
