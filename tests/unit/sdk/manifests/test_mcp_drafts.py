"""Drafts from an MCP server's `tools/list`: taken as far as they go, never at the server's word."""

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from countersign.cli.app import app
from countersign.contract import load_manifest
from countersign.contract.json_schema import validator_of
from countersign.errors import MisuseError
from countersign.manifests.mcp_closed_schemas import ANY_VALUE
from countersign.manifests.mcp_drafts import MAX_LISTING_BYTES, mcp_drafts
from policy_service.facts.manifests import InputCodec

SKU = {"type": "object", "properties": {"sku": {"type": "string"}}}
TEXT = {"type": "string"}
DRAFT_7 = "http://json-schema.org/draft-07/schema#"
REFUND: dict[str, Any] = {
    "name": "refund",
    "title": "Refund a payment",
    "description": "Gives money back.",
    "inputSchema": {
        "$schema": DRAFT_7,
        "type": "object",
        "title": "RefundArgs",
        "required": ["note", "payment_id", "amount"],
        "properties": {
            "payment_id": {"type": "string", "title": "Payment"},
            "amount": {"type": "integer", "default": 5},
            "note": {"type": "string", "pattern": "^[a-z]*$", "$schema": DRAFT_7},
            "title": {"type": "string"},
            "api_key": {"type": "string"},
            "lines": {"type": "array", "items": SKU},
        },
    },
    "annotations": {"readOnlyHint": True, "destructiveHint": False, "idempotentHint": True},
}


def listing(*tools: Any) -> bytes:
    return json.dumps({"tools": list(tools)}).encode()


def drafted(tool: dict[str, Any]) -> Any:
    ((draft,), _) = mcp_drafts(listing(tool))
    return draft


def schema(**properties: Any) -> dict[str, Any]:
    return {"name": "t", "inputSchema": {"type": "object", "properties": properties}}


def test_a_draft_is_closed_careful_and_in_the_servers_words() -> None:
    assert drafted(REFUND).manifest.to_json() == {
        "tool": "refund",
        "title": "Refund a payment",
        "description": "What the MCP server says about this tool; it is not reviewed: Gives money back.",
        "args": {
            "type": "object",
            "additionalProperties": False,
            "required": ["note", "payment_id", "amount"],
            "properties": {
                "payment_id": {"type": "string"},
                "amount": {"type": "integer"},
                "note": {"type": "string", "pattern": "^[a-z]*$"},
                "title": {"type": "string"},
                "api_key": {"type": "string"},
                "lines": {"type": "array", "items": SKU | {"additionalProperties": False}},
            },
        },
        "resource": {"type": "Payment", "id": "/payment_id"},
        "risk": "high",
        "secret": ["/api_key"],
        "sentence": "Refund a payment: amount {amount}, lines {lines}, note {note}, payment_id {payment_id}, "
        "title {title}",
    }


def test_every_guess_and_claim_is_noted_for_review() -> None:
    notes = "\n".join(drafted(REFUND).notes)
    for expected in (
        "readOnlyHint: true is claimed by the server, review it",
        "destructiveHint: false is claimed",
        "idempotentHint: true is claimed",
        'risk: "high" until somebody reviews',
        "resource: guessed as Payment /payment_id",
        "secret: /api_key by name",
        '/inputSchema: "additionalProperties": false was added',
        '/inputSchema/properties/lines/items: "additionalProperties": false was added',
    ):
        assert expected in notes, notes


LISTINGS = {
    "the result": {"tools": [REFUND]},
    "the envelope": {"jsonrpc": "2.0", "id": 1, "result": {"tools": [REFUND]}},
    "the list": [REFUND],
}


@pytest.mark.parametrize("value", LISTINGS.values(), ids=LISTINGS)
def test_the_listing_may_come_in_any_of_its_forms(value: Any) -> None:
    drafts, notes = mcp_drafts(json.dumps(value).encode())
    assert ([one.tool for one in drafts], notes) == (["refund"], ())
    _, notes = mcp_drafts(json.dumps({"tools": [REFUND], "nextCursor": "x"}).encode())
    assert "more tools follow" in notes[0]


def required(**types: str) -> dict[str, Any]:
    return {"required": [*types], "properties": {name: {"type": kind} for name, kind in types.items()}}


RESOURCES = {
    "an id": (required(id="string"), ("T", "/id")),
    "in camel case": (required(userId="integer"), ("UserRecord", "/userId")),
    "an optional id counts for nothing": ({"properties": {"order_id": TEXT}}, ("Tool", "const:t")),
    "the first text": (required(n="integer", path="string"), ("Path", "/path")),
    "nothing": ({}, ("Tool", "const:t")),
}


@pytest.mark.parametrize(("members", "expected"), RESOURCES.values(), ids=RESOURCES)
def test_the_resource_is_guessed_by_a_rule(members: dict[str, Any], expected: tuple[str, str]) -> None:
    manifest = drafted({"name": "t", "inputSchema": {"type": "object", **members}}).manifest
    assert (manifest.resource.type, manifest.resource.id) == expected


OBJECT: dict[str, Any] = {"type": "object"}
FREE_KEYS = OBJECT | {"additionalProperties": ANY_VALUE}
FREE: dict[str, tuple[Any, Any, str]] = {
    "anything": ({}, {}, "may hold anything"),
    "anything with a word": ({"description": "x"}, {"description": "x"}, "may hold anything"),
    "true": (True, {}, "may hold anything"),
    "free keys": (OBJECT, FREE_KEYS, "takes any keys"),
    "no properties": (OBJECT | {"properties": {}}, FREE_KEYS | {"properties": {}}, "takes any keys"),
    "free keys, said to be so": (
        OBJECT | {"propertyNames": {"type": "string"}, "additionalProperties": {}},
        FREE_KEYS | {"propertyNames": {"type": "string"}}, "takes any keys"),
    "a list of anything": ({"type": "array"}, {"type": "array"}, "takes any items"),
}  # fmt: skip


@pytest.mark.parametrize(("given", "written", "note"), FREE.values(), ids=FREE)
def test_a_free_form_argument_is_drafted_with_a_note(given: Any, written: Any, note: str) -> None:
    draft = drafted(schema(x=given))
    assert draft.manifest.args["properties"] == {"x": written}
    assert InputCodec(draft.manifest).possible_unseen == {"x"}
    (reported,) = [one for one in draft.notes if one.startswith(f"/inputSchema/properties/x: {note}")]
    assert "requires the group `unseen`" in reported


NOTHING = {
    "items": {"type": "array", "prefixItems": [{"type": "string"}], "items": False},
    "an argument": False,
    "additional keys": {"type": "object", "additionalProperties": False},
}


@pytest.mark.parametrize("given", NOTHING.values(), ids=NOTHING)
def test_a_schema_that_allows_nothing_is_kept(given: Any) -> None:
    draft = drafted(schema(x=given))
    assert draft.manifest.args["properties"] == {"x": given}
    assert not [one for one in draft.notes if "anything" in one or "any keys" in one]


ITSELF = OBJECT | {"$ref": "#/$defs/x", "$defs": {"x": {"anyOf": [{"$ref": "#/$defs/x"}]}}}
MULTIPLIED = OBJECT | {
    "properties": {"x": {"$ref": "#/$defs/0"}},
    "$defs": {str(n): {"allOf": [{"$ref": f"#/$defs/{n + 1}"}] * 2} for n in range(30)}
    | {"30": {"type": "string"}},
}
MANY = OBJECT | {"properties": {f"a{n}": TEXT for n in range(1_000)}, "anyOf": [{"required": ["a1"]}] * 1_000}
NO_ARGUMENT: dict[str, tuple[Any, str]] = {
    "a tuple as it was in draft 7": ({"type": "array", "items": [{}]}, "/items is not JSON Schema 2020-12"),
    "a definition that is not there": ({"$ref": "#/$defs/y"}, "/$ref: '#/$defs/y' names no definition"),
    "a reference out": ({"$ref": "https://evil/x.json"}, "/$ref:"),
    "a slash in disguise": ({"$ref": "#/$defs/x%2Fconst"}, "/$ref: '#/$defs/x%2Fconst' names no definition"),
    "what is left of a list": (
        {"type": "array", "unevaluatedItems": {"type": "string"}}, "/unevaluatedItems: is not allowed here"),
    "what is left of an object": (
        {"type": "array", "items": {"unevaluatedProperties": False}},
        "/items/unevaluatedProperties: is not allowed here"),
    "a dynamic reference": ({"$dynamicRef": "#a"}, "/$dynamicRef: is not allowed here"),
    "a pattern without a bound": (
        {"type": "string", "pattern": "(?=a)b"}, "/pattern: '(?=a)b' cannot be run in bounded time"),
    "names by a pattern without a bound": (
        {"type": "object", "patternProperties": {"(?=a)b": {"type": "string"}}},
        "/patternProperties: '(?=a)b' cannot be run in bounded time"),
    "a schema that is none": ([1], " is not JSON Schema 2020-12"),
}  # fmt: skip
NO_INPUT: dict[str, tuple[Any, str]] = {
    "arguments of any name": (OBJECT | {"additionalProperties": TEXT}, ": takes arguments of any name"),
    "some argument of any name": (OBJECT | {"minProperties": 1}, ": takes arguments of any name"),
    "a definition that applies to itself": (ITSELF, "/$defs/x/anyOf/0: 'x' applies to itself"),
    "definitions that multiply": (MULTIPLIED, ": combines too many subschemas"),
    "many names in many branches": (MANY, ": combines too many subschemas"),
    "no object": ({"type": "array"}, ": must be an object schema"),
    "no schema": ("x", ": must be an object schema"),
    "properties that are none": (OBJECT | {"properties": 5}, "/properties is not JSON Schema 2020-12"),
}
NOT_TAKEN: dict[str, tuple[dict[str, Any], str]] = {
    "a type that is none": (
        schema(**{"a/b": {"type": "text"}}), "/inputSchema/properties/a~1b/type is not JSON Schema"),
    "a reference to what is no definition": (
        schema(xs={"type": "array", "contentSchema": OBJECT}, x={"$ref": "#/properties/xs/contentSchema"}),
        "/inputSchema/properties/x/$ref: '#/properties/xs/contentSchema' names no definition"),
    "a prototype": (schema(__proto__={"type": "string"}), "'__proto__' is not a name"),
    "a hidden name": (schema(**{"a\u202eb": {"type": "string"}}), "'a\\u202eb' is not a name"),
    "what policies call reads": (schema() | {"name": "read"}, "'read' is the action group"),
    "what people do": (schema() | {"name": "approve"}, "the action 'approve' is what people do"),
    "a name of another alphabet": (schema() | {"name": "\u0440ay"}, "is no tool name"),
    "a description turned round": (
        schema() | {"description": "x\u202ey"}, "/description: contains the invisible character U+202E"),
    "an invisible title": (schema() | {"title": "x\u200b"}, "/title: contains the invisible character U+200B"),
    **{name: (schema(x=given), f"/inputSchema/properties/x{why}") for name, (given, why) in NO_ARGUMENT.items()},
    **{name: ({"name": "t", "inputSchema": given}, f"/inputSchema{why}") for name, (given, why) in NO_INPUT.items()},
}  # fmt: skip


@pytest.mark.parametrize(("tool", "message"), NOT_TAKEN.values(), ids=NOT_TAKEN)
def test_what_cannot_be_drafted_is_named_with_advice(tool: dict[str, Any], message: str) -> None:
    draft = drafted(tool)
    assert draft.manifest is None
    assert any(message in problem for problem in draft.problems), draft.problems


def argument(x: Any) -> Any:
    return schema(x=x)["inputSchema"]


def an_object(properties: Any = None, **more: Any) -> dict[str, Any]:
    return OBJECT | ({} if properties is None else {"properties": properties}) | more


A, A_AND_B = {"a": TEXT}, {"a": TEXT, "b": TEXT}
A_OR_B = [{"properties": A, "required": ["a"]}, {"required": ["b"]}]
COMPOSED: dict[str, tuple[Any, list[Any], list[Any]]] = {
    "a choice of arguments": (
        an_object(anyOf=A_OR_B), [{"a": "x"}, {"b": [1]}, {"a": "x", "b": 1}], [{}, {"c": 1}, {"a": 1}]),
    "exactly one": (
        an_object(oneOf=A_OR_B), [{"a": "x"}, {"b": 1}], [{"a": "x", "b": 1}, {"a": "x", "c": 1}]),
    "a condition": (
        an_object(
            {"kind": TEXT, "to": TEXT}, then={"properties": {"to": {"pattern": "@"}}, "required": ["to"]},
            **{"if": {"properties": {"kind": {"const": "mail"}}}}),
        [{"kind": "mail", "to": "a@b"}, {"kind": "post", "to": "x"}, {"kind": "post"}],
        [{"kind": "mail"}, {"kind": "mail", "to": "x"}, {"kind": "post", "cc": "x"}]),
    "what must not be": (
        an_object(A_AND_B, **{"not": {"properties": {"a": {"const": "x"}}, "required": ["a"]}}),
        [{"a": "y"}, {"b": "z"}], [{"a": "x"}, {"a": "x", "b": "z"}, {"a": "x", "c": 1}]),
    "an argument that needs another": (
        an_object(A_AND_B, dependentSchemas={"a": {"required": ["b"]}}),
        [{"a": "x", "b": "y"}, {"b": "y"}], [{"a": "x"}]),
    "the same as it was in draft 7": (
        an_object(A_AND_B | {"c": TEXT}, dependencies={"a": ["b"], "b": {"required": ["c"]}}),
        [{"a": "x", "b": "y", "c": "z"}, {"b": "y", "c": "z"}, {"c": "z"}],
        [{"a": "x"}, {"b": "y"}, {"a": "x", "b": "y"}]),
    "an object of two definitions": (
        an_object(
            {"x": {"allOf": [{"$ref": "#/$defs/A"}, {"$ref": "#/$defs/B"}]}, "only": {"$ref": "#/$defs/A"}},
            **{"$defs": {
                "A": an_object({"a": an_object({"u": TEXT})}),
                "B": an_object({"a": {"properties": {"v": TEXT}}}, required=["a"])}}),
        [{"x": {"a": {"u": "1", "v": "2"}}}, {"only": {"a": {"u": "1"}}}],
        [{"x": {"a": {"w": 1}}}, {"x": {}}, {"x": {"a": {}, "b": 1}}, {"only": {"a": {"v": "2"}}}]),
    "a tree": (
        an_object(
            {"x": {"$ref": "#/$defs/N"}},
            **{"$defs": {"N": an_object({"v": TEXT, "next": {"$ref": "#/$defs/N"}})}}),
        [{"x": {"next": {"next": {"v": "1"}}}}], [{"x": {"next": {"next": {"w": "1"}}}}]),
    "names by a pattern": (
        argument(an_object(anyOf=[{"patternProperties": {"^x-": TEXT}}, {"properties": {"a": {"const": 1}}}])),
        [{"x": {"x-1": "v", "a": 1}}, {"x": {"a": 1}}], [{"x": {"b": 1}}, {"x": {"x-1": 1, "a": 2}}]),
    "an item of two schemas": (
        argument({"items": {"properties": A}, "allOf": [{"items": {"properties": {"b": TEXT}}}]}),
        [{"x": [{"a": "1", "b": "2"}]}], [{"x": [{"c": 1}]}, {"x": [{"a": 1}]}]),
    "a branch of a closed object": (
        an_object(A, additionalProperties=False, anyOf=[{"required": ["a"]}, {"properties": {"b": TEXT}}]),
        [{"a": "x"}, {}], [{"b": "x"}]),
    "a required argument without a schema": (an_object(required=["a"]), [{"a": {"b": 1}}], [{}, {"a": 1, "c": 1}]),
    "an object or null": (
        argument({"type": ["object", "null"], "properties": A}),
        [{"x": None}, {"x": {"a": "1"}}], [{"x": {"b": 1}}, {"x": 1}]),
    "an object or a text": (
        argument({"anyOf": [an_object(A), TEXT]}), [{"x": "1"}, {"x": {"a": "1"}}], [{"x": {"b": 1}}]),
    "an object that one branch leaves free": (
        argument({"anyOf": [an_object(A), an_object(additionalProperties=True)]}),
        [{"x": {"a": "1"}}, {"x": {"b": {"c": 1}}}], [{"x": "1"}]),
}  # fmt: skip


@pytest.mark.parametrize(("given", "taken", "refused"), COMPOSED.values(), ids=COMPOSED)
def test_a_composed_schema_is_closed_once_and_keeps_its_meaning(given: Any, taken: Any, refused: Any) -> None:
    manifest = drafted({"name": "t", "inputSchema": given}).manifest
    closed = validator_of(manifest.args)
    assert [one for one in taken if not closed.is_valid(one)] == []
    assert [one for one in refused if closed.is_valid(one)] == []
    assert InputCodec(manifest).cedar_type


def test_what_a_definition_always_describes_is_typed_for_policy() -> None:
    args = OBJECT | {
        "allOf": [{"$ref": "#/$defs/Args"}],
        "$defs": {"Args": {"properties": {"amount": {"type": "integer"}}, "required": ["amount"]}},
    }
    manifest = drafted({"name": "t", "inputSchema": args}).manifest
    assert manifest.args["required"] == ["amount"]
    assert InputCodec(manifest).encode({"amount": 5}).input == {"amount": 5}


def test_definitions_that_no_argument_reaches_keep_no_tool_out() -> None:
    tool = schema(x={"$ref": "#/$defs/used"})
    reached = {"used": {"type": "array", "items": {"$ref": "#/$defs/inner"}}, "inner": {"type": "integer"}}
    tool["inputSchema"]["properties"]["y"] = {"$ref": "#/$defs/Name[int]"}
    reached["Name[int]"] = {"type": "integer"}
    tool["inputSchema"]["$defs"] = reached | {
        "unused": {"type": "array", "items": 5, "maximum": 2**64, "$anchor": "x"},
        "unused_too": {"$ref": "https://elsewhere/x.json"},
    }
    manifest = drafted(tool).manifest
    assert manifest.args["$defs"] == reached


@pytest.mark.parametrize("name", ["read", "approve", "stop"])
def test_a_prefix_frees_a_name_that_policies_use(name: str) -> None:
    ((draft,), _) = mcp_drafts(listing({"name": name, "inputSchema": OBJECT}), prefix="files.")
    assert draft.tool == name and draft.manifest is not None and draft.manifest.tool == f"files.{name}"


@pytest.mark.parametrize("name", ["mail.send", "a/b", "srv:tool", "x" * 128])
def test_a_tool_of_any_name_is_drafted(name: str) -> None:
    assert drafted({"name": name, "inputSchema": OBJECT}).manifest is not None


def test_words_of_any_kind_make_a_sound_sentence() -> None:
    long = {f"argument_{n}": {"type": "string"} for n in range(100)}
    manifest = drafted(schema(**long, **{"{x": {"type": "string"}}) | {"title": "Take {all}", "description": "d" * 9_000}).manifest  # noqa: E501 # fmt: skip
    assert manifest.sentence.startswith("Take {{all}}: argument_0 {argument_0}, ")
    assert len(manifest.description) == 4_000


BIG = 9223372036854775807
TWICE = b'{"name": "odd", "inputSchema": {"type": "object", "required": [], "required": []}}'
ODD: dict[str, tuple[Any, str]] = {
    "an int64 bound": (schema(x={"maximum": BIG}), f"/inputSchema/properties/x/maximum: {BIG}: "),
    "an int64 value": (schema(x={"enum": [1, -BIG]}), "/inputSchema/properties/x/enum/1: "),
    "no number": (schema(x={"minimum": float("nan")}), "/inputSchema/properties/x/minimum: NaN"),
    "an endless number": (schema(x={"minimum": -float("inf")}), "/properties/x/minimum: -Infinity"),
    "half a character": (schema(**{"\ud800": TEXT}), "/inputSchema/properties: "),
    "half a character in the title": (schema() | {"title": "\udc00"}, "/title: "),
    "the engine's own key": (schema(x={"const": {"__extn": 1}}), "/inputSchema/properties/x/const/__extn: "),
    "a key twice": (TWICE, "/inputSchema/required: is given twice"),
    "a deep one": (schema(x={"const": json.loads("[" * 60 + "]" * 60)}), "nested deeper than"),
    "a large text": (schema(x={"enum": ["y" * 300_000]}), "/inputSchema/properties/x/enum/0: more than"),
    "many values": (schema(x={"enum": list(range(10_000))}), "/inputSchema: more than 10000 values"),
}


@pytest.mark.parametrize(("tool", "message"), ODD.values(), ids=ODD)
def test_an_odd_tool_keeps_no_other_one_out(tool: Any, message: str) -> None:
    odd = tool if isinstance(tool, bytes) else json.dumps(tool | {"name": "odd"}).encode()
    others = [json.dumps(one).encode() for one in (REFUND, schema())]
    drafts, _ = mcp_drafts(b'{"tools": [%s, %s, %s]}' % (others[0], odd, others[1]))
    taken = [(one.tool, one.manifest is not None) for one in drafts]
    assert taken == [("refund", True), ("odd", False), ("t", True)]
    assert any(message in problem for problem in drafts[1].problems), drafts[1].problems


def test_what_no_call_is_held_against_may_hold_anything() -> None:
    tool = schema(x={"type": "integer", "default": BIG, "examples": [BIG]})
    manifest = drafted(tool | {"outputSchema": {"maximum": BIG}}).manifest
    assert manifest.args["properties"] == {"x": {"type": "integer"}}


@pytest.mark.parametrize(
    "entry", [{"name": "\ud800"}, "refund", {"inputSchema": {}}, {"name": 5}, None], ids=repr
)
def test_an_entry_without_a_name_is_named_by_pointer(entry: Any) -> None:
    drafts, _ = mcp_drafts(listing(REFUND, entry))
    assert drafts[0].manifest is not None
    assert drafts[1].problems == ("/tools/1: is no tool with a name",)


def test_tools_of_one_name_are_refused_and_the_others_are_drafted() -> None:
    drafts, _ = mcp_drafts(listing(REFUND, schema(), REFUND | {"description": "another"}))
    assert [one.manifest is not None for one in drafts] == [False, True, False]
    assert "2 tools are called 'refund'" in drafts[0].problems[0]


def deep(depth: int) -> bytes:
    return b'{"tools": [{"name": "t", "inputSchema": ' + b'{"not": ' * depth + b"true" + b"}" * depth + b"}]}"


REFUSED = {
    "no JSON": (b"tools", "no tools/list answer"),
    "nothing": (b"", "no tools/list answer"),
    "an error": (b'{"jsonrpc": "2.0", "error": {"code": 1}}', "answered with an error"),
    "something else": (b'{"resources": []}', "no tools/list answer"),
    "a list of names": (b'["refund"]', "no tools/list answer"),
    "a key twice": (b'{"tools": [], "tools": []}', "no tools/list answer"),
    "deep": (deep(5_000), "no tools/list answer"),
    "huge": (b" " * (MAX_LISTING_BYTES + 1), "no tools/list answer"),
    "many": (listing(*({"name": f"t{n}"} for n in range(1_001))), "1001 tools"),
}


@pytest.mark.parametrize(("raw", "message"), REFUSED.values(), ids=REFUSED)
def test_a_listing_that_is_none_is_refused_whole(raw: bytes, message: str) -> None:
    with pytest.raises(MisuseError, match=message.replace("(", r"\(")):
        mcp_drafts(raw)


def run(*args: str | Path, input: bytes | None = None) -> Result:
    return CliRunner().invoke(app, ["tools", "export", *map(str, args)], input=input)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "listing.json"
    path.write_bytes(listing(REFUND, {"name": "a/b", "inputSchema": OBJECT}))
    return path


def test_export_writes_drafts_with_review_notes(file: Path, tmp_path: Path) -> None:
    """One that is there is kept."""
    out = tmp_path / "out"
    done = run("--mcp", file, "--out", out)
    assert done.exit_code == 0, done.output
    assert sorted(path.name for path in out.iterdir()) == ["a%2Fb.json", "refund.json"]
    assert load_manifest((out / "refund.json").read_bytes()).tool == "refund"
    assert "review: readOnlyHint: true is claimed by the server" in done.output
    assert "These are drafts and count for nothing yet" in done.output
    (out / "refund.json").write_text("edited")
    assert "kept as it was" in run("--mcp", file, "--out", out).output
    run("--mcp", file, "--out", out, "--force", "--prefix", "bank.")
    assert (out / "refund.json").read_text() == "edited"
    assert load_manifest((out / "bank.refund.json").read_bytes()).tool == "bank.refund"


def test_a_tool_without_a_draft_is_named_and_the_others_are_written(file: Path, tmp_path: Path) -> None:
    odd = [schema(x={"$dynamicRef": "#a"}), {"name": "\x1b[2J", "inputSchema": OBJECT}]
    file.write_bytes(listing(REFUND, *odd))
    done = run("--mcp", file, "--out", tmp_path / "out")
    assert (done.exit_code, [path.name for path in (tmp_path / "out").iterdir()]) == (1, ["refund.json"])
    assert "t: no draft" in done.output and "x/$dynamicRef: is not allowed" in done.output
    assert "\x1b" not in done.output


WRONG = {
    "neither": ((), "either --tools MODULE or --mcp FILE"),
    "both": (("--tools", "x", "--mcp", "y"), "either --tools MODULE or --mcp FILE"),
    "no file": (("--mcp", "no-such-file.json"), "cannot be read"),
    "a prefix of tools": (("--tools", "x", "--prefix", "bank."), "--prefix is for"),
}


@pytest.mark.parametrize(("args", "message"), WRONG.values(), ids=WRONG)
def test_a_usage_error_is_reported(args: tuple[str, ...], message: str) -> None:
    done = run(*args)
    assert done.exit_code == 1 and message in done.output


def test_export_reads_stdin_and_writes_to_drafts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    done = run("--mcp", "-", "--json", input=listing(REFUND))
    reported = json.loads(done.output)["tools"]
    assert (reported[0]["path"], reported[0]["written"]) == ("drafts/refund.json", True)
    assert (tmp_path / "drafts/refund.json").exists()
