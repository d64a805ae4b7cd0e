"""Draft manifests from an MCP server's list of tools (`tools/list`), for people to review.

The server is not trusted. Nothing it says makes a draft less careful: the risk is high, and no hint adds a tool to the
group of reads or makes it idempotent; the hints are reported as notes. Its schema is used as far as ours allows and
closed where it is open. What cannot be used is reported by pointer with advice, and such a tool gets no draft. An
ambiguous listing (two tools with one name) is refused as a whole.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from countersign.contract.admission import RESERVED_KEYS, admit, admitted_bytes, load
from countersign.contract.errors import ContractError
from countersign.contract.json_schema import require_json_schema
from countersign.contract.manifest import (
    ToolManifest,
    load_manifest,
    require_tool_name,
    require_unreserved_tool,
)
from countersign.contract.pointers import pointer_to
from countersign.errors import MisuseError
from countersign.manifests.listed_schemas import clean_schema
from countersign.manifests.mcp_closed_schemas import Findings, close_schema, is_hidden

MAX_LISTING_BYTES: Final = 4 * 1_048_576
MAX_TOOLS: Final = 1_000
_MAX_DEPTH: Final = 44  # of a listed schema: a manifest nests 48 deep, and closing it may add a few levels
_MAX_DIGITS: Final = 40  # of a quoted number

_HINTS: Final = ("readOnlyHint", "destructiveHint", "idempotentHint", "openWorldHint")
_SECRET: Final = re.compile(r"passw|secret|token|api_?key|credential|private_?key", re.IGNORECASE)
_OUR_TYPES: Final = frozenset({"Agent", "User", "Role", "Group", "Review", "Task", "Action"})
_CLAIMED: Final = "What the MCP server says about this tool; it is not reviewed: "
_MAX_DESCRIPTION: Final = 4_000
_MAX_SENTENCE: Final = 500
_MAX_TITLE: Final = 200


@dataclass(frozen=True, slots=True)
class McpDraft:
    """One tool of the listing. Without a `manifest` the `problems` say why; `notes` are for review."""

    tool: str
    manifest: ToolManifest | None
    notes: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()


def mcp_drafts(raw: bytes, prefix: str = "") -> tuple[list[McpDraft], tuple[str, ...]]:
    """A draft of every tool in a `tools/list` response: the result, its JSON-RPC envelope, or the plain list.

    `prefix` is prepended to each tool name: two servers may use the same name, and some names are reserved. The second
    value has notes on the listing itself. A tool that cannot be drafted does not affect the others.

    Raises:
        MisuseError: it is not such a response, or too large.
    """
    tools, notes = _tools_in(_load(raw))
    if len(tools) > MAX_TOOLS:
        raise MisuseError(f"{len(tools)} tools; {MAX_TOOLS} is the limit, name the ones you mean")
    names = [_name_of(one) for one in tools]
    counted = Counter(names)
    return [
        _draft(one, name, prefix, counted[name]) if name is not None else _unnamed(index)
        for index, (name, one) in enumerate(zip(names, tools, strict=True))
    ], notes


def _load(raw: bytes) -> Any:
    """Parse JSON leniently, with an `_InvalidValue` for what strict JSON refuses and a lenient reader would change."""
    if len(raw) > MAX_LISTING_BYTES:
        raise MisuseError(f"this is no tools/list answer: more than {MAX_LISTING_BYTES} bytes")
    try:
        return json.loads(
            raw.decode(),
            object_pairs_hook=_object,
            parse_int=_scalar,
            parse_float=_scalar,
            parse_constant=lambda word: _InvalidValue(f"{word} is no JSON"),
        )
    except (ValueError, RecursionError) as error:
        raise MisuseError(f"this is no tools/list answer: {error}") from error


class _InvalidValue:
    """A value that strict JSON does not admit."""

    def __init__(self, why: object) -> None:
        self._why = str(why)

    def __str__(self) -> str:
        return self._why


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    counted = Counter(name for name, _ in pairs)
    return {
        name: value if counted[name] == 1 else _InvalidValue("is given twice") for name, value in pairs
    } | {
        name: _InvalidValue("is a name that the policy engine reserves")
        for name in RESERVED_KEYS & counted.keys()
    }


def _scalar(digits: str) -> Any:
    try:
        return load(digits.encode())
    except ContractError as error:
        return _InvalidValue(f"{digits[:_MAX_DIGITS]}: {error}")


def _tools_in(listing: Any) -> tuple[list[Any], tuple[str, ...]]:
    value = listing
    if isinstance(value, dict) and "error" in value:
        raise MisuseError("the server answered with an error instead of its tools; ask it again")
    if isinstance(value, dict) and "result" in value:
        value = value["result"]
    more = isinstance(value, dict) and value.get("nextCursor") is not None
    if isinstance(value, dict):
        value = value.get("tools")
    if not isinstance(value, list) or (value and not any(isinstance(one, dict) for one in value)):
        raise MisuseError(
            'this is no tools/list answer: write {"tools": [...]}, the JSON-RPC answer that holds it, or the list'
        )
    cursor = "this is one page: nextCursor says that more tools follow; export the other pages as well"
    return value, (cursor,) if more else ()


def _name_of(tool: Any) -> str | None:
    name = tool.get("name") if isinstance(tool, dict) else None
    return name if isinstance(name, str) and not any(_invalid_values(name, "")) else None


def _unnamed(index: int) -> McpDraft:
    return McpDraft(f"/tools/{index}", None, problems=(f"/tools/{index}: is no tool with a name",))


def _draft(tool: Mapping[str, Any], name: str, prefix: str, count: int) -> McpDraft:
    found = Findings()
    title, description = _title_and_description(name, tool, found)
    args = _args(tool, found)
    _claims(tool, found)
    try:
        require_unreserved_tool(require_tool_name(prefix + name))
    except ContractError as error:
        found.problems.insert(
            0, f"{error}; a prefix helps where a name is taken: --prefix, and prefix= of gate_mcp"
        )
    if count > 1:
        found.problems.insert(
            0, f"{count} tools are called {name!a}, so it would be ambiguous which one was reviewed"
        )
    manifest = None if found.problems else _manifest(prefix + name, title, description, args, found)
    return McpDraft(name, manifest, *(tuple(dict.fromkeys(one)) for one in (found.notes, found.problems)))


def _manifest(
    name: str, title: str, description: str, args: dict[str, Any], found: Findings
) -> ToolManifest | None:
    properties: Mapping[str, Any] = args["properties"]
    members: dict[str, Any] = {
        "tool": name,
        "title": title,
        "description": description,
        "args": args,
        "resource": _resource(name, args, found),
        "risk": "high",
        "secret": _secrets(properties, found),
        "sentence": _sentence(title, properties),
    }
    try:
        manifest = load_manifest(admitted_bytes(members))
        require_json_schema(manifest.args, "/inputSchema")
    except ContractError as error:
        found.problems.append(f"/inputSchema: {error}")
        return None
    return manifest


def _title_and_description(name: str, tool: Mapping[str, Any], found: Findings) -> tuple[str, str]:
    hints = tool.get("annotations")
    given = tool.get("title") or (hints.get("title") if isinstance(hints, dict) else None)
    title = given if isinstance(given, str) and given.strip() else name
    description = tool.get("description")
    description = description if isinstance(description, str) else ""
    for pointer, text in (("/title", title), ("/description", description)):
        found.problems += _invalid_values(text, pointer)
        hidden = next((char for char in text if is_hidden(char)), None)
        if hidden is not None:
            found.problems.append(
                f"{pointer}: contains the invisible character U+{ord(hidden):04X}; take it out of the listing"
            )
    limit = _MAX_DESCRIPTION - len(_CLAIMED)
    return title.strip()[:_MAX_TITLE], f"{_CLAIMED}{description[:limit]}" if description else ""


def _args(tool: Mapping[str, Any], found: Findings) -> dict[str, Any]:
    schema = tool.get("inputSchema", {"type": "object"})
    if not isinstance(schema, dict) or schema.get("type", "object") != "object":
        found.problems.append('/inputSchema: must be an object schema; write {"type": "object", ...}')
        return {}
    given = {"type": "object", **clean_schema(schema)}
    if given.pop("$id", None) is not None:
        found.notes.append("/inputSchema/$id: left out; references stay inside the document")
    found.problems += _invalid_values(given, "/inputSchema")
    if found.problems:
        return {}
    try:
        require_json_schema(given, "/inputSchema")
    except ContractError as error:
        found.problems.append(str(error))
        return {}
    return close_schema(given, "/inputSchema", found)


def _invalid_values(value: Any, at: str) -> Iterator[str]:
    """What strict JSON would refuse, by pointer. The listing is read leniently, so that one invalid tool does not
    affect the others.
    """
    if isinstance(value, _InvalidValue):
        yield f"{at}: {value}"
    elif isinstance(value, dict | list) and at.count("/") > _MAX_DEPTH:
        yield f"{at}: nested deeper than {_MAX_DEPTH} levels; write it flatter"
    elif isinstance(value, dict):
        for name, child in value.items():
            yield from _invalid_values(name, at)
            yield from _invalid_values(
                child, at + pointer_to(name).encode("utf-8", "backslashreplace").decode()
            )
    elif isinstance(value, list):
        for index, child in enumerate(value):
            yield from _invalid_values(child, f"{at}/{index}")
    elif isinstance(value, str):
        try:
            admit(value)
        except ContractError as error:
            yield f"{at}: {error}"


def _claims(tool: Mapping[str, Any], found: Findings) -> None:
    hints = tool.get("annotations")
    for hint in _HINTS:
        if isinstance(hints, dict) and isinstance(hints.get(hint), bool):
            found.notes.append(
                f"{hint}: {str(hints[hint]).lower()} is claimed by the server, review it; the draft ignores it"
            )
    found.notes.append('risk: "high" until somebody reviews what a wrong call can do')


def _resource(name: str, args: Mapping[str, Any], found: Findings) -> dict[str, str]:
    """Guess what a call acts on: the first required argument named like an id, else the first required text."""
    required = args.get("required")
    wanted = [one for one in required if isinstance(one, str)] if isinstance(required, list) else []
    properties: Mapping[str, Any] = args["properties"]
    named = [one for one in wanted if _kind(properties.get(one)) in {"string", "integer"}]
    ids = [one for one in named if re.search(r"(?:^|_)id$|[a-z]I[dD]$", one)]
    texts = [one for one in named if _kind(properties[one]) == "string"]
    for argument in (*ids, *texts):
        kind = _type_name(re.sub(r"(?:^|_)id$|I[dD]$", "", argument) or name)
        found.notes.append(
            f"resource: guessed as {kind} {pointer_to(argument)} from the arguments' names; declare what it acts on"
        )
        return {"type": kind, "id": pointer_to(argument)}
    found.notes.append(
        "resource: no argument names one, so the tool itself is the resource; declare what it acts on"
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


def _secrets(properties: Mapping[str, Any], found: Findings) -> list[str]:
    secret = [pointer_to(name) for name in properties if _SECRET.search(name)]
    if secret:
        found.notes.append(f"secret: {', '.join(secret)} by name; add what else must stay secret")
    return secret


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
