"""Drafts from an MCP server's `tools/list`: taken as far as they go, never at the server's word."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from countersign.cli.app import app
from countersign.contract import load_manifest
from countersign.errors import MisuseError
from countersign.manifests.mcp_drafts import MAX_LISTING_BYTES, McpDraft, mcp_drafts

REFUND: dict[str, Any] = {
    "name": "refund",
    "title": "Refund a payment",
    "description": "Gives money back.",
    "inputSchema": {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "type": "object",
        "title": "RefundArgs",
        "required": ["note", "payment_id", "amount"],
        "properties": {
            "payment_id": {"type": "string", "title": "Payment"},
            "amount": {"type": "integer", "default": 5},
            "note": {"type": "string", "pattern": "^[a-z]*$"},
            "title": {"type": "string"},
            "api_key": {"type": "string"},
            "lines": {
                "type": "array",
                "items": {"type": "object", "properties": {"sku": {"type": "string"}}},
            },
        },
    },
    "annotations": {"readOnlyHint": True, "destructiveHint": False, "idempotentHint": True},
}


def listing(*tools: Any) -> bytes:
    return json.dumps({"tools": list(tools)}).encode()


def drafted(tool: dict[str, Any]) -> McpDraft:
    ((draft,), _) = mcp_drafts(listing(tool))
    return draft


def schema(**properties: Any) -> dict[str, Any]:
    return {"name": "t", "inputSchema": {"type": "object", "properties": properties}}


def test_a_draft_is_closed_careful_and_in_the_servers_words() -> None:
    manifest = drafted(REFUND).manifest
    assert manifest is not None
    assert manifest.to_json() == {
        "tool": "refund",
        "title": "Refund a payment",
        "description": "What the MCP server says about this tool; nobody has reviewed it: Gives money back.",
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
                "lines": {
                    "type": "array",
                    "items": {
                        "type": "object",
                        "additionalProperties": False,
                        "properties": {"sku": {"type": "string"}},
                    },
                },
            },
        },
        "resource": {"type": "Payment", "id": "/payment_id"},
        "risk": "high",
        "secret": ["/api_key"],
        "sentence": "Refund a payment: amount {amount}, lines {lines}, note {note}, payment_id {payment_id}, "
        "title {title}",
    }


def test_every_guess_and_claim_is_told_for_review() -> None:
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


def test_a_page_of_several_says_so() -> None:
    _, notes = mcp_drafts(json.dumps({"tools": [REFUND], "nextCursor": "x"}).encode())
    assert "more tools follow" in notes[0]


RESOURCES = {
    "an id": ({"required": ["id"], "properties": {"id": {"type": "string"}}}, ("T", "/id")),
    "in camel case": (
        {"required": ["userId"], "properties": {"userId": {"type": "integer"}}},
        ("UserRecord", "/userId"),
    ),
    "an optional id counts for nothing": ({"properties": {"order_id": {"type": "string"}}}, ("Tool", "const:t")),
    "the first text": (
        {"required": ["n", "path"], "properties": {"n": {"type": "integer"}, "path": {"type": "string"}}},
        ("Path", "/path"),
    ),
    "nothing": ({}, ("Tool", "const:t")),
}  # fmt: skip


@pytest.mark.parametrize(("members", "expected"), RESOURCES.values(), ids=RESOURCES)
def test_the_resource_is_guessed_by_a_rule(members: dict[str, Any], expected: tuple[str, str]) -> None:
    manifest = drafted({"name": "t", "inputSchema": {"type": "object", **members}}).manifest
    assert manifest is not None and (manifest.resource.type, manifest.resource.id) == expected


OBJECT = {"type": "object"}
NOT_TAKEN = {
    "anything": (schema(x={}), "/inputSchema/properties/x: may hold anything"),
    "anything with a word": (schema(x={"description": "x"}), "/inputSchema/properties/x: may hold anything"),
    "true": (schema(x=True), "/inputSchema/properties/x: may hold anything"),
    "free keys": (schema(x=OBJECT), "/inputSchema/properties/x: takes any keys"),
    "free keys in a list": (
        schema(x={"type": "array", "items": OBJECT | {"additionalProperties": True}}),
        "/inputSchema/properties/x/items: takes any keys",
    ),
    "a reference out": (schema(x={"$ref": "https://evil/x.json"}), "/inputSchema/properties/x/$ref:"),
    "a reference to what is no definition": (
        schema(xs={"type": "array", "contentSchema": OBJECT}, x={"$ref": "#/properties/xs/contentSchema"}),
        "/inputSchema/properties/x/$ref: '#/properties/xs/contentSchema' names no definition",
    ),
    "a reference as it was before $defs": (
        schema(x={"$ref": "#/definitions/x"}),
        "/inputSchema/properties/x/$ref: '#/definitions/x' names no definition",
    ),
    "a slash in disguise": (
        schema(x={"$ref": "#/$defs/x%2Fconst"}),
        "/inputSchema/properties/x/$ref: '#/$defs/x%2Fconst' names no definition",
    ),
    "what is left of a list": (
        schema(x={"type": "array", "unevaluatedItems": {"type": "string"}}),
        "/inputSchema/properties/x/unevaluatedItems: is not allowed here",
    ),
    "what is left of an object": (
        schema(x={"type": "array", "items": {"unevaluatedProperties": False}}),
        "/inputSchema/properties/x/items/unevaluatedProperties: is not allowed here",
    ),
    "a dynamic reference": (
        schema(x={"$dynamicRef": "#a"}),
        "/inputSchema/properties/x/$dynamicRef: is not allowed here",
    ),
    "a prototype": (schema(__proto__={"type": "string"}), "'__proto__' is no name"),
    "a hidden name": (schema(**{"a\u202eb": {"type": "string"}}), "'a\\u202eb' is no name"),
    "a pattern without a bound": (
        schema(x={"type": "string", "pattern": "(?=a)b"}),
        "/inputSchema/properties/x/pattern: '(?=a)b' cannot be run in bounded time",
    ),
    "names by a pattern without a bound": (
        schema(x={"type": "object", "patternProperties": {"(?=a)b": {"type": "string"}}}),
        "/inputSchema/properties/x/patternProperties: '(?=a)b' cannot be run in bounded time",
    ),
    "no object": ({"name": "t", "inputSchema": {"type": "array"}}, "/inputSchema: must be an object schema"),
    "no schema": ({"name": "t", "inputSchema": "x"}, "/inputSchema: must be an object schema"),
    "a schema that is none": (schema(x=[1]), "/inputSchema/properties/x: is no JSON Schema"),
    "properties that are none": (
        {"name": "t", "inputSchema": {"type": "object", "properties": 5}},
        "/inputSchema/properties: must be an object",
    ),
    "a name of another alphabet": ({"name": "\u0440ay", "inputSchema": OBJECT}, "is no tool name"),
    "a name turned round": ({"name": "a\u202eb", "inputSchema": OBJECT}, "is no tool name"),
    "a description turned round": (
        {"name": "t", "description": "x\u202ey", "inputSchema": OBJECT},
        "/description: holds the character U+202E",
    ),
    "a title nobody sees": (
        {"name": "t", "title": "x\u200b", "inputSchema": OBJECT},
        "/title: holds the character U+200B",
    ),
}


@pytest.mark.parametrize(("tool", "message"), NOT_TAKEN.values(), ids=NOT_TAKEN)
def test_what_cannot_be_taken_is_named_with_what_to_do(tool: dict[str, Any], message: str) -> None:
    draft = drafted(tool)
    assert draft.manifest is None
    assert any(message in problem for problem in draft.problems), draft.problems


def test_a_reference_to_a_definition_is_taken() -> None:
    tool = schema(x={"$ref": "#/$defs/Name[int]"})
    tool["inputSchema"]["$defs"] = {"Name[int]": {"type": "integer"}}
    manifest = drafted(tool).manifest
    assert manifest is not None and manifest.args["properties"] == {"x": {"$ref": "#/$defs/Name[int]"}}


def test_a_dialect_inside_is_left_out() -> None:
    manifest = drafted(
        schema(x={"$schema": "http://json-schema.org/draft-07/schema#", "type": "string"})
    ).manifest
    assert manifest is not None and manifest.args["properties"] == {"x": {"type": "string"}}


@pytest.mark.parametrize("name", ["mail.send", "a/b", "srv:tool", "x" * 128])
def test_a_tool_of_any_name_is_drafted(name: str) -> None:
    assert drafted({"name": name, "inputSchema": OBJECT}).manifest is not None


def test_words_of_any_kind_make_a_sound_sentence() -> None:
    long = {f"argument_{n}": {"type": "string"} for n in range(100)}
    manifest = drafted(schema(**long, **{"{x": {"type": "string"}}) | {"title": "Take {all}", "description": "d" * 9_000}).manifest  # noqa: E501 # fmt: skip
    assert manifest is not None and manifest.sentence.startswith("Take {{all}}: argument_0 {argument_0}, ")
    assert len(manifest.description) == 4_000


def deep(depth: int) -> bytes:
    return b'{"tools": [{"name": "t", "inputSchema": ' + b'{"not": ' * depth + b"true" + b"}" * depth + b"}]}"


REFUSED = {
    "no JSON": (b"tools", "no tools/list answer"),
    "nothing": (b"", "no tools/list answer"),
    "an error": (b'{"jsonrpc": "2.0", "error": {"code": 1}}', "answered with an error"),
    "something else": (b'{"resources": []}', "no tools/list answer"),
    "a list of names": (b'["refund"]', "no tools/list answer"),
    "no name": (b'{"tools": [{}]}', "tool 0 of the listing has no name"),
    "twice": (listing(REFUND, REFUND), "two tools are called 'refund'"),
    "a key twice": (b'{"tools": [], "tools": []}', "no tools/list answer"),
    "deep": (deep(5_000), "no tools/list answer"),
    "huge": (b" " * (MAX_LISTING_BYTES + 1), "no tools/list answer"),
    "many": (listing(*({"name": f"t{n}"} for n in range(1_001))), "1001 tools"),
    "engine's own key": (listing(schema(x={"const": {"__extn": 1}})), "no tools/list answer"),
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


def test_export_writes_drafts_and_says_what_to_review(file: Path, tmp_path: Path) -> None:
    done = run("--mcp", file, "--out", tmp_path / "out")
    assert done.exit_code == 0, done.output
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["a%2Fb.json", "refund.json"]
    assert load_manifest((tmp_path / "out/refund.json").read_bytes()).tool == "refund"
    assert "review: readOnlyHint: true is claimed by the server" in done.output
    assert "These are drafts and count for nothing yet" in done.output


def test_export_reads_the_input_and_writes_beside_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    done = run("--mcp", "-", "--json", input=listing(REFUND))
    told = json.loads(done.output)["tools"]
    assert (told[0]["path"], told[0]["written"]) == ("drafts/refund.json", True)
    assert (tmp_path / "drafts/refund.json").exists()


def test_a_tool_without_a_draft_is_named_and_the_others_are_written(file: Path, tmp_path: Path) -> None:
    file.write_bytes(listing(REFUND, schema(x={}), {"name": "\x1b[2J", "inputSchema": OBJECT}))
    done = run("--mcp", file, "--out", tmp_path / "out")
    assert done.exit_code == 1
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["refund.json"]
    assert "t: no draft" in done.output and "may hold anything" in done.output and "\x1b" not in done.output


def test_a_draft_that_is_there_is_kept_unless_forced(file: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    run("--mcp", file, "--out", out)
    (out / "refund.json").write_text("edited")
    assert "kept as it was" in run("--mcp", file, "--out", out).output
    assert (out / "refund.json").read_text() == "edited"
    run("--mcp", file, "--out", out, "--force")
    assert (out / "refund.json").read_text() != "edited"


WRONG = {
    "neither": ((), "either --tools MODULE or --mcp FILE"),
    "both": (("--tools", "x", "--mcp", "y"), "either --tools MODULE or --mcp FILE"),
    "no file": (("--mcp", "no-such-file.json"), "cannot be read"),
}


@pytest.mark.parametrize(("args", "message"), WRONG.values(), ids=WRONG)
def test_a_wrong_call_is_told(args: tuple[str, ...], message: str) -> None:
    done = run(*args)
    assert done.exit_code == 1 and message in done.output


def test_drafts_are_never_written_where_reviewed_manifests_lie(file: Path, tmp_path: Path) -> None:
    done = run("--mcp", file, "--out", tmp_path / "tools", "--force")
    assert done.exit_code == 1 and "place of a reviewed manifest" in done.output
    assert not (tmp_path / "tools").exists()
