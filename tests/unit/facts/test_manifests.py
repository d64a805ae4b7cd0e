"""Arguments as `context.input`: what is typed, unseen or refused."""

import json
from typing import Any

import cedarpy
import pytest

from countersign.contract import ToolManifest, load_manifest
from policy_service.domain.policy_request import InvalidArgsError
from policy_service.facts.manifests import InputCodec
from tests.fakes.bundles import pay_manifest

MONEY = {"type": "number", "format": "decimal"}
CLOSED = {"type": "object", "additionalProperties": False}
TEXT, SET = {"type": "string"}, {"type": "array", "uniqueItems": True}
DECIMAL = {"type": "Extension", "name": "decimal"}


def manifest(properties: dict[str, Any], required: tuple[str, ...] = (), **changes: Any) -> ToolManifest:
    args = {**CLOSED, "properties": {"account": {"type": "string"}, **properties}, "required": list(required)}
    args |= changes.pop("args", {})
    return load_manifest(json.dumps(pay_manifest(args=args, sentence="Pay", **changes)).encode())


def codec(properties: dict[str, Any], required: tuple[str, ...] = (), **changes: Any) -> InputCodec:
    return InputCodec(manifest(properties, required, **changes))


def decimal(text: str) -> dict[str, Any]:
    return {"__extn": {"fn": "decimal", "arg": text}}


SEEN: dict[str, tuple[dict[str, Any], Any, dict[str, Any], Any]] = {
    "a string": ({"type": "string"}, "x", {"type": "String"}, "x"),
    "an enum is a String": ({"enum": ["USD", "EUR"]}, "EUR", {"type": "String"}, "EUR"),
    "a constant": ({"const": "yes"}, "yes", {"type": "String"}, "yes"),
    "an integer": ({"type": "integer"}, 7, {"type": "Long"}, 7),
    "the largest integer": ({"type": "integer"}, 2**53 - 1, {"type": "Long"}, 2**53 - 1),
    "an enum of integers": ({"enum": [1, 2]}, 2, {"type": "Long"}, 2),
    "a boolean": ({"type": "boolean"}, False, {"type": "Boolean"}, False),
    "a declared decimal": (MONEY, 1.5, DECIMAL, decimal("1.5")),
    "a decimal that is whole": (MONEY, 3, DECIMAL, decimal("3.0")),
    "a number in steps of a cent": ({"type": "number", "multipleOf": 0.01}, 0.07, DECIMAL, decimal("0.07")),
    "a set of strings": (SET | {"items": TEXT}, ["b"], {"type": "Set", "element": {"type": "String"}}, ["b"]),
    "a set of decimals": (SET | {"items": MONEY}, [0.5], {"type": "Set", "element": DECIMAL}, [decimal("0.5")]),
    "an object": (
        {**CLOSED, "properties": {"city": {"type": "string"}}}, {"city": "Oslo"},
        {"type": "Record", "attributes": {"city": {"type": "String", "required": False}}}, {"city": "Oslo"}),
    "a type written as a list of one": ({"type": ["string"]}, "x", {"type": "String"}, "x"),
    "a bounded string": ({"type": "string", "maxLength": 3, "pattern": "^a"}, "abc", {"type": "String"}, "abc"),
    "an unchecked format": ({"type": "string", "format": "email"}, "no", {"type": "String"}, "no"),
}  # fmt: skip


@pytest.mark.parametrize(("schema", "value", "cedar_type", "written"), SEEN.values(), ids=SEEN)
def test_a_field_is_typed(schema: Any, value: Any, cedar_type: dict[str, Any], written: Any) -> None:
    it = codec({"x": schema})
    assert it.cedar_type["attributes"]["x"] == {**cedar_type, "required": False}
    encoded = it.encode({"account": "a", "x": value})
    assert (encoded.input["x"], encoded.unseen) == (written, ())
    assert it.possible_unseen == frozenset()


UNSEEN: dict[str, tuple[dict[str, Any], Any, str]] = {
    "a plain number, which Cedar has not": ({"type": "number"}, 1.5, "x"),
    "a number in finer steps than Cedar's": ({"type": "number", "multipleOf": 0.00001}, 0.5, "x"),
    "null": ({"type": "null"}, None, "x"),
    "a union of types": ({"type": ["string", "null"]}, "text", "x"),
    "a choice of schemas": ({"anyOf": [{"type": "string"}, {"type": "null"}]}, "text", "x"),
    "a list, whose order and repeats a Set loses": ({"type": "array", "items": {"type": "string"}}, ["a"], "x"),
    "a list that says no type of its items": ({"type": "array", "uniqueItems": True}, ["a"], "x"),
    "a list of objects": (SET | {"items": {**CLOSED, "properties": {}}}, [{}], "x"),
    "a list of lists": (SET | {"items": SET | {"items": TEXT}}, [["a"]], "x"),
    "a tuple": (SET | {"prefixItems": [TEXT], "items": TEXT}, ["a"], "x"),
    "a map with free keys": ({"type": "object", "additionalProperties": TEXT}, {"k": "v"}, "x"),
    "some free keys": (CLOSED | {"properties": {"a": TEXT}, "additionalProperties": TEXT}, {"a": "v"}, "x"),
    "no type at all": ({}, "anything", "x"),
    "an enum of mixed types": ({"enum": ["a", 1]}, "a", "x"),
    "a field inside": ({**CLOSED, "properties": {"note": {"type": ["string", "null"]}}}, {"note": "n"}, "x/note"),
}  # fmt: skip


@pytest.mark.parametrize(("schema", "value", "name"), UNSEEN.values(), ids=UNSEEN)
def test_what_cedar_cannot_weigh_is_named_and_left_out(schema: dict[str, Any], value: Any, name: str) -> None:
    it = codec({"x": schema})
    assert it.encode({"account": "a"}).unseen == (), "what is not there is nothing"
    encoded = it.encode({"account": "a", "x": value})
    assert encoded.unseen == (name,)
    assert it.possible_unseen == {name}
    assert "note" not in json.dumps(encoded.input)
    assert "x" not in it.cedar_type["attributes"] or name == "x/note"


def test_names_of_unseen_fields_are_escaped_like_pointers() -> None:
    odd = {**CLOSED, "properties": {"a/b~c": {"type": "null"}}}
    assert codec({"x": odd}).encode({"account": "a", "x": {"a/b~c": None}}).unseen == ("x/a~1b~0c",)


AN_ENTITY, AN_EXTENSION = {"__entity": {"type": "User", "id": "r"}}, {"__extn": {"fn": "unknown", "arg": "x"}}
REFUSED: list[tuple[dict[str, Any], Any, str]] = [
    *(({"type": "integer"}, value, "x") for value in ("500", 1.5, True, 2**53, 2**64, AN_EXTENSION)),
    *((TEXT, value, "x") for value in (None, AN_ENTITY)),
    *((MONEY, value, "x") for value in (12.55555, 1e16)),
    ({"enum": ["USD"]}, "usd", "x"),
    ({"type": "number", "multipleOf": 0.01}, 0.075, "x"),
    *((SET | {"items": TEXT}, value, place) for value, place in ((["a", "a"], "x"), (["a", 1], "x/1"))),
    ({**CLOSED, "properties": {}}, {"k": 1}, "x"),
    ({"type": "array", "items": TEXT}, [1], "x/0"),
]


@pytest.mark.parametrize(("schema", "value", "place"), REFUSED)
def test_what_does_not_fit_is_refused_by_place(schema: dict[str, Any], value: Any, place: str) -> None:
    with pytest.raises(InvalidArgsError, match=f"^{place}: "):
        codec({"x": schema}).encode({"account": "a", "x": value})


# The last ones have an unknown property, a reserved key, and none that is required.
ARGS_REFUSED: list[Any] = [["a"], None, "account", {"account": "a", "extra": 1}]
ARGS_REFUSED += [{"account": "a", "__extn": {"fn": "unknown", "arg": "x"}}, {}]


@pytest.mark.parametrize("args", ARGS_REFUSED)
def test_args_as_a_whole_may_be_refused(args: Any) -> None:
    with pytest.raises(InvalidArgsError, match="args: "):
        codec({}, required=("account",)).encode(args)


SECRETS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "of the field itself": ({"type": "integer"}, {}),
    "inside the whole": ({"type": "string"}, {"maxProperties": 1}),
}


@pytest.mark.parametrize(("pin", "args"), SECRETS.values(), ids=SECRETS)
def test_a_refusal_never_quotes_a_secret_value(pin: dict[str, Any], args: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgsError) as refused:
        codec({"pin": pin}, secret=["/pin"], args=args).encode({"account": "a", "pin": "hunter2"})
    assert "hunter2" not in str(refused.value)
    assert args or "pin" in str(refused.value)


def test_a_number_with_hundreds_of_digits_is_weighed_and_not_a_fault() -> None:
    it = codec({"x": {"type": "number", "multipleOf": 0.01}})
    with pytest.raises(InvalidArgsError):
        it.encode({"account": "a", "x": 1e-300})
    with pytest.raises(InvalidArgsError):
        it.encode({"account": "a", "x": 1e300})  # a multiple, and beyond what Cedar's decimal holds


def test_items_are_unique_by_their_canonical_bytes() -> None:
    it = codec({"x": {"type": "array", "uniqueItems": True}})
    it.encode({"account": "a", "x": [1, "1", True, {"a": 1}, {"a": 2}]})
    with pytest.raises(InvalidArgsError, match="not unique"):
        it.encode({"account": "a", "x": [{"a": 1, "b": 2}, {"b": 2, "a": 1}]})
    with pytest.raises(InvalidArgsError, match="not unique"):
        it.encode({"account": "a", "x": [1, 1.0]})


def test_a_refusal_does_not_quote_a_long_value() -> None:
    with pytest.raises(InvalidArgsError) as refused:
        codec({"x": {"type": "integer"}}).encode({"account": "a", "x": "y" * 10_000})
    assert len(str(refused.value)) < 200


def test_references_inside_the_document_are_followed() -> None:
    it = codec(
        {"to": {"$ref": "#/$defs/Address"}, "list": {"type": "array", "items": {"$ref": "#/$defs/Address"}}},
        args={"$defs": {"Address": {**CLOSED, "properties": {"zip": {"$ref": "#/$defs/Zip"}}},
                        "Zip": {"type": "string", "description": "a code"}}},
    )  # fmt: skip
    encoded = it.encode({"account": "a", "to": {"zip": "0150"}, "list": [{"zip": "0150"}]})
    assert (encoded.input["to"], encoded.unseen) == ({"zip": "0150"}, ("list",))
    with pytest.raises(InvalidArgsError, match="list/0/zip"):
        it.encode({"account": "a", "list": [{"zip": 150}]})


def test_a_type_that_holds_itself_is_unseen_below() -> None:
    tree = {**CLOSED, "properties": {"name": {"type": "string"}, "child": {"$ref": "#/$defs/Tree"}}}
    it = codec({"tree": {"$ref": "#/$defs/Tree"}}, args={"$defs": {"Tree": tree}})
    encoded = it.encode({"account": "a", "tree": {"name": "n", "child": {"name": "m"}}})
    assert (encoded.input["tree"], encoded.unseen) == ({"name": "n"}, ("tree/child",))


SCHEMAS_REFUSED: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "not JSON Schema": ({"x": {"type": "strnig"}}, {}, "not JSON Schema"),
    "a pattern that is none": ({"x": {"type": "string", "pattern": "("}}, {}, "is not a 'regex'"),
    "a pattern without a bound": ({"x": TEXT | {"pattern": "(?=a)b"}}, {}, "x/pattern: '.*cannot be run in bounded"),
    "a property the engine would read as a value": ({"__extn": {"type": "string"}}, {}, "reserved"),
    "references that unfold without end": (
        {"x": {"$ref": "#/$defs/d12"}},
        {"$defs": {"d0": {"type": "string"}} | {
            f"d{n}": {**CLOSED, "properties": {side: {"$ref": f"#/$defs/d{n - 1}"} for side in "ab"}}
            for n in range(1, 13)}},
        "unfold",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("properties", "extra", "message"), SCHEMAS_REFUSED.values(), ids=SCHEMAS_REFUSED)
def test_an_unusable_schema_is_refused(properties: Any, extra: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        codec(properties, args=extra)


NAMED: dict[str, Any] = {"type": "object", "patternProperties": {"^(a+)+$": {"type": "integer"}}}
HOSTILE: dict[str, tuple[dict[str, Any], Any, str]] = {
    "in a text": ({"type": "string", "pattern": "^(a+)+$"}, "a" * 5_000 + "!", "x: does not keep 'pattern'"),
    "in the names of free keys": (NAMED | {"additionalProperties": False}, {"a" * 90 + "!": 1}, "'aaaa"),
    "a schema for other keys": (NAMED | {"additionalProperties": TEXT}, {"a" * 90 + "!": 1}, "not of type 'string'"),
    "with a value of another type": (NAMED | {"additionalProperties": False}, {"aa": "x"}, "not of type 'integer'"),
}  # fmt: skip


@pytest.mark.parametrize(("schema", "value", "says"), HOSTILE.values(), ids=HOSTILE)
def test_a_pattern_never_stops_the_service(schema: dict[str, Any], value: Any, says: str) -> None:
    """Python's `re` would practically never finish these."""
    with pytest.raises(InvalidArgsError) as refused:
        codec({"x": schema}).encode({"account": "a", "x": value})
    assert says in str(refused.value)


def test_free_keys_that_fit_a_pattern_or_the_schema_of_the_others_are_taken() -> None:
    fine = codec({"x": {**NAMED, "additionalProperties": {"type": "string"}}})
    assert fine.encode({"account": "a", "x": {"aa": 1, "b": "c"}}).unseen == ("x",)


def test_a_line_after_the_end_of_a_pattern_is_refused() -> None:
    with pytest.raises(InvalidArgsError, match="does not match"):
        codec({"x": {"type": "string", "pattern": "^[A-Z]{3}$"}}).encode({"account": "a", "x": "USD\n"})


@pytest.mark.parametrize("name", ["gone", "loop"])
def test_a_reference_to_nothing_or_itself_refuses_the_call_instead_of_the_process(name: str) -> None:
    it = codec({"x": {"$ref": f"#/$defs/{name}"}}, args={"$defs": {"loop": {"$ref": "#/$defs/loop"}}})
    with pytest.raises(InvalidArgsError, match="cannot be applied"):
        it.encode({"account": "a", "x": 1})


def test_every_type_we_write_is_one_cedar_takes() -> None:
    it = codec({f"p{index}": schema for index, (schema, *_) in enumerate(SEEN.values())})
    values = {f"p{index}": value for index, (_, value, *_) in enumerate(SEEN.values())}
    applies_to = {
        "principalTypes": ["U"], "resourceTypes": ["U"],
        "context": {"type": "Record", "attributes": {"input": it.cedar_type}},
    }  # fmt: skip
    schema = {"": {"entityTypes": {"U": {}}, "actions": {"a": {"appliesTo": applies_to}}}}
    request = {
        "principal": {"type": "U", "id": "1"}, "action": {"type": "Action", "id": "a"},
        "resource": {"type": "U", "id": "1"}, "context": {"input": it.encode({"account": "a", **values}).input},
    }  # fmt: skip
    result = cedarpy.is_authorized(request, "permit (principal, action, resource);", [], schema)
    assert result.decision is cedarpy.Decision.Allow, result.diagnostics.errors
