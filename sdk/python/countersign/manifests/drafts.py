"""Drafts manifests from code, for people to review and add to the bundle.

A draft repeats what the decorator and the signature state, with the arguments in the order of the signature. Where the
decorator names no money, recipients or secrets, well-known argument names suggest them: whole numbers of minor units
next to a currency, `to`, `email`, `password`, `token` and the like. Risk is never guessed. Members with their default
value are left out. A tool without a resource is refused, and so is an argument that may hold anything, because it
cannot be reviewed.
"""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

import orjson

from countersign.contract.admission import JSON
from countersign.contract.errors import ContractError
from countersign.contract.manifest import ToolManifest, load_manifest
from countersign.contract.pointers import pointer_to
from countersign.errors import RegistrationError
from countersign.tools.class_tools import tool_docstring
from countersign.tools.declaration import resource_for

if TYPE_CHECKING:
    from countersign.tools.definition import Tool

_OF_DEFINITIONS: Final = ("type", "description", "properties", "required", "additionalProperties", "$defs")
_CONST: Final = "const:"
ANNOTATION_KEYWORDS: Final = frozenset(
    {"$schema", "$comment", "title", "default", "examples", "deprecated", "description"}
)
"""JSON Schema keywords that never fail a value."""

_MONEY: Final = re.compile(r"(\w+_)?(cents|minor_units?)")
_CURRENCY: Final = re.compile(r"(\w+_)?currency")
_RECIPIENT: Final = re.compile(r"to|cc|bcc|(\w+_)?(recipients?|e?mails?|email_address(es)?|phone_number)")
_SECRET: Final = re.compile(r"(\w+_)?(password|passphrase|secret|token|api_key|private_key|credentials?)")

_NOISE: Final = ("title", "default")  # pydantic's annotations; the canonical args always contain the defaults


def draft_manifest(tool: Tool) -> ToolManifest:
    """The manifest as the code suggests it.

    Raises:
        RegistrationError: what is missing or contradictory, and how to declare it.
    """
    given = tool.given_manifest
    if given is not None:
        return given
    try:
        return load_manifest(json.dumps(_members(tool)).encode())
    except ContractError as error:
        raise RegistrationError(f"tool {tool.name!r} has no valid manifest: {error}") from error


def manifest_json(manifest: ToolManifest) -> bytes:
    """A manifest as the file people review: indented, members in the model's order, with a final line break."""
    return orjson.dumps(manifest.to_json(), option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)


def _members(tool: Tool) -> dict[str, Any]:
    draft = tool.draft
    title, description = _words(tool)
    schema = args_schema(tool)
    members: dict[str, Any] = {
        "tool": tool.name,
        "title": draft.title or title,
        "description": description,
        "args": schema,
        "resource": _resource(tool),
        "lane": tool.lane,
        "idempotent": draft.idempotent,
        "on_exhausted": draft.on_exhausted,
        "groups": list(draft.groups),
        "secret": [_pointer(one) for one in draft.secret or _texts_named(_SECRET, schema)],
        "risk": draft.risk,
        "money": [_money(one) for one in draft.money or _likely_money(schema)],
        "recipients": [_pointer(one) for one in draft.recipients or _texts_named(_RECIPIENT, schema)],
        "timeout_seconds": draft.timeout_seconds,
        "sentence": draft.sentence or _sentence(tool, draft.title or title),
    }
    if draft.ask is not None:
        members["ask"] = draft.ask
    if draft.compensate is not None:
        members["compensation"] = {"tool": draft.compensate, "map": dict(draft.compensation_map)}
    if draft.probe is not None:
        members["probe"] = draft.probe
    return members


def args_schema(tool: Tool) -> dict[str, JSON]:
    """JSON Schema of the args: references expanded, every object closed, None-by-default arguments optional. A given
    manifest's schema loses its root applicators, which model vendors refuse.
    """
    given = tool.given_manifest
    if given is not None:
        return {key: given.args[key] for key in _OF_DEFINITIONS if key in given.args}
    _require_annotated(tool)
    schema = copy.deepcopy(tool.signature.schema)
    definitions = schema.pop("$defs", {})
    written: dict[str, JSON] = inline_references(
        schema, definitions if isinstance(definitions, dict) else {}, tool.name, ()
    )
    properties = written.get("properties", {})
    if isinstance(properties, dict):
        _require_narrow(tool.name, properties)
        for name in tool.signature.optional & properties.keys():
            properties[name] = _without_null(properties[name])
    return written


def _require_annotated(tool: Tool) -> None:
    bare = tool.signature.bare
    if bare:
        names = ", ".join(repr(name) for name in bare)
        raise RegistrationError(
            f"tool {tool.name!r} does not declare what {names} may hold, and people cannot review an arbitrary "
            f"value; annotate a type, like `{bare[0]}: str` (money is whole minor units, like `amount_cents: "
            "int`)"
        )


def _require_narrow(tool: str, properties: dict[str, JSON]) -> None:
    """Refuse parts of an argument without a type: the items of a bare `list`, the values of a `dict[str, Any]`."""
    wide = [place for name, part in properties.items() for place in _wide_places(part, f"/{name}")]
    if wide:
        raise RegistrationError(
            f"tool {tool!r}: {', '.join(wide)} may hold anything, which people cannot review; annotate a type, "
            "like `list[str]` or `dict[str, int]`"
        )


def _wide_places(node: Any, place: str) -> Iterator[str]:
    if node is True or (isinstance(node, dict) and node.keys() <= ANNOTATION_KEYWORDS):
        yield place
    elif isinstance(node, dict):
        parts = [(f"/{key}", node[key]) for key in ("items", "additionalProperties") if key in node]
        for key in ("allOf", "anyOf", "oneOf", "prefixItems"):
            parts += [(f"/{key}/{position}", one) for position, one in enumerate(node.get(key, ()))]
        for key in ("properties", "patternProperties"):
            parts += [(f"/{key}/{name}", one) for name, one in node.get(key, {}).items()]
        for where, part in parts:
            yield from _wide_places(part, place + where)


def inline_references(node: Any, definitions: dict[str, Any], tool: str, within: tuple[str, ...] = ()) -> Any:
    """A schema with references expanded, annotations removed and objects closed.

    Raises:
        RegistrationError: it contains itself, or refers to a missing definition.
    """
    if isinstance(node, list):
        return [inline_references(item, definitions, tool, within) for item in node]
    if not isinstance(node, dict):
        return node
    if "$ref" in node:
        name = str(node["$ref"]).removeprefix("#/$defs/")
        if name in within:
            raise RegistrationError(
                f"tool {tool!r}: {name} contains itself; people cannot review endless args"
            )
        if name not in definitions:
            raise RegistrationError(f"tool {tool!r}: the schema refers to {name!r}, which is not under $defs")
        return inline_references(definitions[name], definitions, tool, (*within, name))
    written = {
        key: _properties(value, definitions, tool, within)
        if key == "properties"
        else inline_references(value, definitions, tool, within)
        for key, value in node.items()
        if key not in _NOISE
    }
    if written.get("type") == "object":
        written.setdefault("additionalProperties", False)
    return written


def _properties(value: Any, definitions: dict[str, Any], tool: str, within: tuple[str, ...]) -> Any:
    """Property names are not keywords: an argument may be called `title`."""
    return {name: inline_references(one, definitions, tool, within) for name, one in value.items()}


def _without_null(schema: Any) -> Any:
    """Remove null from an argument that is left out when None."""
    branches = schema.get("anyOf") if isinstance(schema, dict) else None
    if not isinstance(branches, list):
        return schema
    kept = [branch for branch in branches if branch != {"type": "null"}]
    rest = {key: value for key, value in schema.items() if key != "anyOf"}
    return {**kept[0], **rest} if len(kept) == 1 else {**rest, "anyOf": kept}


def _words(tool: Tool) -> tuple[str, str]:
    text = tool_docstring(tool.fn)
    plain = tool.name.replace("_", " ").replace(".", " ").capitalize()
    return plain, text[:4000]


def _resource(tool: Tool) -> dict[str, str]:
    if tool.draft.resource is None:
        raise RegistrationError(
            f"tool {tool.name!r} does not say what it acts on; write "
            f'@tool("{tool.name}", resource={resource_for(tool.signature)}), the type and the argument that names one'
        )
    kind, where = tool.draft.resource
    return {"type": kind, "id": _pointer(where)}


def _pointer(where: str) -> str:
    """An argument's name, a JSON pointer or a constant, in the manifest's notation."""
    if where.startswith(("/", _CONST)):
        return where
    return pointer_to(where)


def _money(field: Any) -> dict[str, str]:
    return {key: _pointer(value) for key, value in dict(field).items()}


def _texts_named(name: re.Pattern[str], schema: dict[str, Any]) -> list[str]:
    """The arguments so named that are text or lists of text."""
    parts = {one: part for one, part in schema.get("properties", {}).items() if name.fullmatch(one)}
    return [
        one
        for one, part in parts.items()
        if "string" in (part.get("type"), part.get("items", {}).get("type"))
    ]


def _likely_money(schema: dict[str, Any]) -> list[dict[str, str]]:
    """The whole numbers of minor units, if exactly one argument is a currency."""
    currencies = _texts_named(_CURRENCY, schema)
    whole = [one for one, part in schema.get("properties", {}).items() if part.get("type") == "integer"]
    amounts = [one for one in whole if _MONEY.fullmatch(one)] if len(currencies) == 1 else []
    return [{"amount": one, "currency": currencies[0]} for one in amounts]


def _sentence(tool: Tool, title: str) -> str:
    """An initial sentence: the title, then every argument. People improve it in review."""
    named = ", ".join(f"{name} {{{name}}}" for name in tool.signature.parameters)
    return f"{title}: {named}" if named else title
