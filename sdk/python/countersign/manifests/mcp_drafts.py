"""Drafts of manifests from what an MCP server says about its tools (`tools/list`), for people to review.

The server's words are claims of a stranger. Rules: nothing it says makes a draft less careful: the risk is high, no
hint puts a tool into the group of reads or calls it idempotent; its hints are told beside the draft. Its schema is
taken as far as ours goes, closed where it is open, and whatever cannot be taken is named by pointer with what to do;
such a tool gets no draft. A listing that is ambiguous (two tools of one name) is refused as a whole.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, cast

from countersign.contract.admission import JSON, Limits, admit, load
from countersign.contract.canonical import canonicalize
from countersign.contract.errors import ContractError
from countersign.contract.manifest import ToolManifest, load_manifest, require_tool_name
from countersign.contract.patterns import found_by
from countersign.contract.pointers import pointer_to
from countersign.contract.schemas import names_definition
from countersign.errors import MisuseError
from countersign.manifests.drafting import SAYS_NOTHING

MAX_LISTING_BYTES: Final = 4 * 1_048_576
MAX_TOOLS: Final = 1_000
_LIMITS: Final = Limits(max_bytes=MAX_LISTING_BYTES, max_depth=48, max_nodes=200_000)

_HINTS: Final = ("readOnlyHint", "destructiveHint", "idempotentHint", "openWorldHint")
_NOISE: Final = SAYS_NOTHING - {"description"}
_MAPS: Final = frozenset({"properties", "patternProperties", "$defs", "definitions", "dependentSchemas"})
_LISTS: Final = frozenset({"allOf", "anyOf", "oneOf", "prefixItems"})
_SCHEMAS: Final = frozenset(
    {"items", "additionalProperties", "contains", "not", "if", "then", "else", "propertyNames"}
)
_NOT_OURS: Final = frozenset(
    {
        "$dynamicRef",
        "$recursiveRef",
        "$anchor",
        "$dynamicAnchor",
        "unevaluatedProperties",
        "unevaluatedItems",
    }
)
_SECRET: Final = re.compile(r"passw|secret|token|api_?key|credential|private_?key", re.IGNORECASE)
_OUR_TYPES: Final = frozenset({"Agent", "User", "Role", "Group", "Review", "Task", "Action"})
_CLAIMED: Final = "What the MCP server says about this tool; nobody has reviewed it: "
_MAX_DESCRIPTION: Final = 4_000
_MAX_SENTENCE: Final = 500
_MAX_TITLE: Final = 200


@dataclass(frozen=True, slots=True)
class McpDraft:
    """One tool of the listing. Without a `manifest` the `problems` say why; `notes` are what to look at in review."""

    tool: str
    manifest: ToolManifest | None
    notes: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()


@dataclass
class _Told:
    notes: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


def mcp_drafts(raw: bytes) -> tuple[list[McpDraft], tuple[str, ...]]:
    """A draft of every tool in a `tools/list` answer: the result, its JSON-RPC envelope, or the plain list.

    The second value is what to know about the listing itself.

    Raises:
        MisuseError: it is no such answer, too large, or two of its tools have one name.
    """
    try:
        listing = load(raw, _LIMITS)
    except ContractError as error:
        raise MisuseError(f"this is no tools/list answer: {error}") from error
    tools, notes = _tools_in(listing)
    if len(tools) > MAX_TOOLS:
        raise MisuseError(f"{len(tools)} tools; {MAX_TOOLS} is the limit, name the ones you mean")
    names = [_name_of(index, one) for index, one in enumerate(tools)]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise MisuseError(f"two tools are called {twice[0]!a}; nobody could say which one was reviewed")
    return [_draft(name, one) for name, one in zip(names, tools, strict=True)], notes


def _tools_in(listing: JSON) -> tuple[list[Mapping[str, Any]], tuple[str, ...]]:
    value: Any = listing
    if isinstance(value, dict) and "error" in value:
        raise MisuseError("the server answered with an error instead of its tools; ask it again")
    if isinstance(value, dict) and "result" in value:
        value = value["result"]
    more = isinstance(value, dict) and value.get("nextCursor") is not None
    if isinstance(value, dict):
        value = value.get("tools")
    if not isinstance(value, list) or not all(isinstance(one, dict) for one in value):
        raise MisuseError(
            'this is no tools/list answer: write {"tools": [...]}, the JSON-RPC answer that holds it, or the list'
        )
    cursor = "this is one page: nextCursor says that more tools follow; export the other pages as well"
    return cast(list[Mapping[str, Any]], value), (cursor,) if more else ()


def _name_of(index: int, tool: Mapping[str, Any]) -> str:
    name = tool.get("name")
    if not isinstance(name, str):
        raise MisuseError(f"tool {index} of the listing has no name")
    return name


def _draft(name: str, tool: Mapping[str, Any]) -> McpDraft:
    told = _Told()
    try:
        require_tool_name(name)
    except ContractError as error:
        return McpDraft(name, None, problems=(str(error),))
    title, description = _words(name, tool, told)
    args = _args(tool, told)
    _claims(tool, told)
    if told.problems:
        return McpDraft(name, None, tuple(told.notes), tuple(told.problems))
    properties: Mapping[str, Any] = args["properties"]
    members: dict[str, Any] = {
        "tool": name,
        "title": title,
        "description": description,
        "args": args,
        "resource": _resource(name, args, told),
        "risk": "high",
        "secret": _secrets(properties, told),
        "sentence": _sentence(title, properties),
    }
    try:
        manifest = load_manifest(canonicalize(admit(members)))
    except ContractError as error:
        return McpDraft(name, None, tuple(told.notes), (str(error),))
    return McpDraft(name, manifest, tuple(told.notes))


def _words(name: str, tool: Mapping[str, Any], told: _Told) -> tuple[str, str]:
    hints = tool.get("annotations")
    given = tool.get("title") or (hints.get("title") if isinstance(hints, dict) else None)
    title = given if isinstance(given, str) and given.strip() else name
    description = tool.get("description")
    description = description if isinstance(description, str) else ""
    for pointer, text in (("/title", title), ("/description", description)):
        hidden = next((char for char in text if _is_hidden(char)), None)
        if hidden is not None:
            told.problems.append(
                f"{pointer}: holds the character U+{ord(hidden):04X}, which nobody can see; take it out of the listing"
            )
    room = _MAX_DESCRIPTION - len(_CLAIMED)
    return title.strip()[:_MAX_TITLE], f"{_CLAIMED}{description[:room]}" if description else ""


def _is_hidden(char: str) -> bool:
    return char not in "\n\t\r" and unicodedata.category(char) in {"Cc", "Cf", "Co", "Zl", "Zp"}


def _args(tool: Mapping[str, Any], told: _Told) -> dict[str, Any]:
    schema = tool.get("inputSchema", {"type": "object"})
    if not isinstance(schema, dict) or schema.get("type", "object") != "object":
        told.problems.append('/inputSchema: must be an object schema; write {"type": "object", ...}')
        return {"properties": {}}
    given = {"type": "object", **schema, "properties": schema.get("properties", {})}
    if given.pop("$id", None) is not None:
        told.notes.append("/inputSchema/$id: left out; references stay inside the document")
    taken: dict[str, Any] = _taken(given, "/inputSchema", told, root=True)
    return taken


def _taken(node: Any, place: str, told: _Told, *, root: bool = False) -> Any:
    """One schema as ours: without decoration, every object closed."""
    if isinstance(node, bool) or (isinstance(node, dict) and node.keys() <= SAYS_NOTHING):
        told.problems.append(f"{place}: may hold anything, and nobody can review that; say what it holds")
        return node
    if not isinstance(node, dict):
        told.problems.append(f"{place}: is no JSON Schema")
        return node
    for keyword in sorted(_NOT_OURS.intersection(node) | ({"$id"} & node.keys())):
        told.problems.append(f"{place}/{keyword}: is not allowed here; write the schema out without it")
    if "$ref" in node and not names_definition(node["$ref"]):
        told.problems.append(
            f"{place}/$ref: {node['$ref']!a} names no definition of the document; write what it names under $defs, "
            "and #/$defs/NAME here"
        )
    if "pattern" in node:
        _pattern(node["pattern"], f"{place}/pattern", told)
    _close(node, place, told, root=root)
    taken = {
        key: _member(key, value, f"{place}/{key}", told)
        for key, value in node.items()
        if key not in _NOISE and (key != "additionalProperties" or _is_map(node))
    }
    if _is_object(node) and not _is_map(node):
        taken["additionalProperties"] = False
    return taken


def _member(key: str, value: Any, place: str, told: _Told) -> Any:
    if (key in _MAPS and not isinstance(value, dict)) or (key in _LISTS and not isinstance(value, list)):
        told.problems.append(f"{place}: must be {'an object' if key in _MAPS else 'a list'} of schemas")
    elif key in _MAPS:
        for name in value:
            if key == "patternProperties":
                _pattern(name, place, told)
            if name == "__proto__" or any(map(_is_hidden, name)):
                told.problems.append(
                    f"{place}: {name!a} is no name people could review; the server must rename it"
                )
        return {name: _taken(child, f"{place}{pointer_to(name)}", told) for name, child in value.items()}
    elif key in _LISTS:
        return [_taken(child, f"{place}/{index}", told) for index, child in enumerate(value)]
    elif key in _SCHEMAS:
        return _taken(value, place, told)
    return value


def _pattern(pattern: Any, place: str, told: _Told) -> None:
    """A regular expression of a stranger, which the service and the agent run on every call."""
    try:
        found_by(str(pattern))
    except ContractError as error:
        told.problems.append(f"{place}: {error}")


def _close(node: Mapping[str, Any], place: str, told: _Told, *, root: bool) -> None:
    if not _is_object(node) or _is_map(node) or node.get("additionalProperties") is False:
        return
    if root or node.get("properties"):
        told.notes.append(
            f'{place}: "additionalProperties": false was added, so arguments nobody reviewed are refused'
        )
    else:
        told.problems.append(
            f'{place}: takes any keys; list its properties, or give "additionalProperties" a schema for the values'
        )


def _is_object(node: Mapping[str, Any]) -> bool:
    kind = node.get("type")
    return kind == "object" or (isinstance(kind, list) and "object" in kind) or "properties" in node


def _is_map(node: Mapping[str, Any]) -> bool:
    """Whether it says itself what its free keys hold. A root does not: args are closed."""
    more = node.get("additionalProperties")
    return isinstance(more, dict) and bool(more) and not node.get("properties")


def _claims(tool: Mapping[str, Any], told: _Told) -> None:
    hints = tool.get("annotations")
    for hint in _HINTS:
        if isinstance(hints, dict) and isinstance(hints.get(hint), bool):
            told.notes.append(
                f"{hint}: {str(hints[hint]).lower()} is claimed by the server, review it; the draft ignores it"
            )
    told.notes.append('risk: "high" until somebody reviews what a wrong call can do')


def _resource(name: str, args: Mapping[str, Any], told: _Told) -> dict[str, str]:
    """What a call acts on, by a rule: the first required argument named like an id, else the first required text."""
    required = args.get("required")
    wanted = [one for one in required if isinstance(one, str)] if isinstance(required, list) else []
    properties: Mapping[str, Any] = args["properties"]
    named = [one for one in wanted if _kind(properties.get(one)) in {"string", "integer"}]
    ids = [one for one in named if re.search(r"(?:^|_)id$|[a-z]I[dD]$", one)]
    texts = [one for one in named if _kind(properties[one]) == "string"]
    for argument in (*ids, *texts):
        kind = _type_name(re.sub(r"(?:^|_)id$|I[dD]$", "", argument) or name)
        told.notes.append(
            f"resource: guessed as {kind} {pointer_to(argument)} from the arguments' names; say what it acts on"
        )
        return {"type": kind, "id": pointer_to(argument)}
    told.notes.append(
        "resource: no argument names one, so the tool itself stands for it; say what it acts on"
    )
    return {"type": "Tool", "id": f"const:{name}"}


def _kind(schema: Any) -> str | None:
    kind = schema.get("type") if isinstance(schema, dict) else None
    return kind if isinstance(kind, str) else None


def _type_name(word: str) -> str:
    parts = re.findall(r"[A-Za-z0-9]+", word)
    name = "".join(part[:1].upper() + part[1:] for part in parts)[:64] or "Item"
    name = name if name[0].isalpha() else f"T{name}"
    return f"{name}Record" if name in _OUR_TYPES else name


def _secrets(properties: Mapping[str, Any], told: _Told) -> list[str]:
    found = [pointer_to(name) for name in properties if _SECRET.search(name)]
    if found:
        told.notes.append(f"secret: {', '.join(found)} by name; add what else nobody may see")
    return found


def _sentence(title: str, properties: Mapping[str, Any]) -> str:
    sentence = title.replace("{", "{{").replace("}", "}}")
    for number, piece in enumerate(_pieces(properties)):
        longer = f"{sentence}{', ' if number else ': '}{piece}"
        if len(longer) > _MAX_SENTENCE:
            break
        sentence = longer
    return sentence


def _pieces(properties: Mapping[str, Any]) -> Iterator[str]:
    for name in sorted(properties):
        if re.fullmatch(r"[A-Za-z0-9_.-]+", name) and not _SECRET.search(name):
            yield f"{name} {{{name}}}"
