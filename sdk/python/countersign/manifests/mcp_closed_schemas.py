"""Closes the args schema of an MCP tool: arguments that the listing does not declare are refused.

The result never accepts what the server's schema refuses. Constraints are only added, and only where each value must
meet them: at a location of the args (an argument, a property, an item), outside every in-place applicator. The keywords
`allOf`, `anyOf`, `oneOf`, `not`, `if`, `then`, `else`, `dependentSchemas` and `$ref` apply subschemas to the same value
(JSON Schema 2020-12 core, section 10.2). One object is therefore closed once, by the schema outside of them, with the
property names of every branch, as `unevaluatedProperties: false` would (section 11.3). Subschemas inside keep their
meaning. Where a branch accepts any keys, the object stays open and is noted.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from countersign.contract.errors import ContractError
from countersign.contract.pointers import pointer_to
from countersign.contract.schema_rules import is_definition_reference, require_bounded
from countersign.manifests.drafts import ANNOTATION_KEYWORDS
from countersign.manifests.listed_schemas import (
    BRANCHES,
    IN_PLACE,
    LISTS,
    MAPS,
    SCHEMAS,
    ApplicableSchema,
    is_free,
    is_object,
    is_open,
    property_names,
    property_patterns,
    same_value_schemas,
    schemas_for_items,
    schemas_for_other_properties,
    schemas_for_property,
)

ANY_VALUE: Final = {"description": "any JSON value"}
"""The schema of free keys. The contract requires one for an object with free keys, which policy then cannot see."""

_OF_OBJECTS: Final = frozenset(
    {"properties", "patternProperties", "additionalProperties", "required", "dependentRequired"}
)
_OF_ARRAYS: Final = frozenset({"items", "prefixItems", "contains"})
_OF_PLACES: Final = (
    "properties",
    "patternProperties",
    "additionalProperties",
    "items",
    "prefixItems",
)
_CONTAINERS: Final = frozenset({"object", "array"})
_KINDS: Final[Mapping[type, str]] = {dict: "object", list: "array"}
_NOT_OURS: Final = frozenset(
    {
        "$dynamicRef", "$recursiveRef", "$id", "$anchor", "$dynamicAnchor", "$recursiveAnchor", "$vocabulary",
        "unevaluatedProperties", "unevaluatedItems",
    }
)  # fmt: skip
_ANYTHING: Final[Mapping[str, Any]] = {}
_MAX_STEPS: Final = 100_000  # of one tool, about a second: composition multiplies short definitions


@dataclass
class Findings:
    """Notes for review, and problems that prevent a draft. Each names its location."""

    notes: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


def close_schema(schema: Mapping[str, Any], at: str, found: Findings) -> dict[str, Any]:
    """The args of a draft, from a well-formed schema that `clean_schema` (listed_schemas.py) has prepared."""
    try:
        args: dict[str, Any] = _SchemaCloser(schema, at, found).args()
        if not found.problems:
            require_bounded(args)
    except (ContractError, RecursionError) as error:
        problem = (
            error if isinstance(error, ContractError) else "refers too deep into itself; write it flatter"
        )
        found.problems.append(f"{at}: {problem}")
        return {"properties": {}}
    return args


class _SchemaCloser:
    """Closes one tool's schema."""

    def __init__(self, root: Mapping[str, Any], at: str, found: Findings) -> None:
        self._root = {key: value for key, value in root.items() if key != "$defs"}
        self._definitions: Mapping[str, Any] = root.get("$defs", {})
        self._at = at
        self._found = found
        self._written: dict[str, Any] = {}
        # Definitions that are referenced and not written yet: the name, the name in the draft, whether closed.
        self._owed: list[tuple[str, str, bool]] = []
        self._within: list[tuple[int, frozenset[int]]] = []
        self._steps = 0

    def args(self) -> dict[str, Any]:
        """The root, with the definitions it needs."""
        args = self._object(self._root, self._at, (), root=True)
        while self._owed:
            name, written, is_closed = self._owed.pop()
            at = self._definition_at(name)
            node = self._definitions[name]
            self._written[written] = self._closed(node, at, ()) if is_closed else self._kept(node, at)
        return {**args, "$defs": self._written} if self._written else args

    def _closed(self, node: Any, at: str, others: tuple[ApplicableSchema, ...]) -> Any:
        """Close a schema that applies to every value at its location; `others` apply there as well."""
        if node is False:
            return node
        node = _ANYTHING if node is True else node
        key = (id(node), frozenset(id(one.schema) for one in others))
        if key in self._within:
            self._refuse(at, "two definitions that contain themselves describe the same value; write one")
            return node
        self._within.append(key)
        try:
            return self._closed_within(node, at, others)
        finally:
            self._within.pop()

    def _closed_within(self, node: Mapping[str, Any], at: str, others: tuple[ApplicableSchema, ...]) -> Any:
        if not others:
            if node.keys() <= ANNOTATION_KEYWORDS:
                self._note_free(at, "may hold anything")
                return dict(node)
            if "$ref" in node and node.keys() <= ANNOTATION_KEYWORDS | {"$ref"}:
                list(
                    self._applied([ApplicableSchema(node, at)], ())
                )  # refuses a definition that applies to itself
                return {**node, "$ref": self._reference(node["$ref"], at, is_closed=True)}
            wraps = [key for key in BRANCHES if len(node.get(key, ())) == 1]
            if wraps and node.keys() <= ANNOTATION_KEYWORDS | {wraps[0]}:
                (only,) = node[wraps[0]]
                annotations = {key: value for key, value in node.items() if key in ANNOTATION_KEYWORDS}
                inner = self._closed(only, f"{at}/{wraps[0]}/0", ())
                return {**annotations, **inner} if isinstance(inner, dict) else inner
            if (apart := self._apart(node)) is not None:
                closed_ones = [
                    self._closed(one, f"{at}/{apart}/{i}", ()) for i, one in enumerate(node[apart])
                ]
                return {**self._kept({k: v for k, v in node.items() if k != apart}, at), apart: closed_ones}
        return self._array(self._object(node, at, others), node, at, others)

    def _apart(self, node: Mapping[str, Any]) -> str | None:
        """Whether no two branches of `anyOf` or `oneOf` accept an object or a list, so that each can be closed by
        itself.
        """
        keys = IN_PLACE & node.keys()
        if len(keys) != 1 or (_OF_OBJECTS | _OF_ARRAYS | {"type"}) & node.keys():
            return None
        (key,) = keys
        if key not in {"anyOf", "oneOf"}:
            return None
        holds = [self._holds(one, ()) for one in node[key]]
        return key if sum(map(len, holds)) == len(frozenset[str]().union(*holds)) else None

    def _holds(self, node: Any, within: tuple[str, ...]) -> frozenset[str]:
        """Which of "object" and "array" a schema may accept, judging by its own types."""
        self._step()
        if isinstance(node, bool):
            return _CONTAINERS if node else frozenset()
        holds = _CONTAINERS
        if "type" in node:
            kinds = node["type"]
            holds &= frozenset([kinds] if isinstance(kinds, str) else kinds)
        if "const" in node or "enum" in node:
            values = node.get("enum", [node.get("const")])
            holds &= frozenset(_KINDS[type(one)] for one in values if type(one) in _KINDS)
        for key in BRANCHES:
            parts = [self._holds(one, within) for one in node.get(key, ())]
            if parts:
                holds &= frozenset.intersection(*parts) if key == "allOf" else frozenset[str]().union(*parts)
        name = self._defined(node.get("$ref"))
        if name is not None and name not in within:
            holds &= self._holds(self._definitions[name], (*within, name))
        return holds

    def _object(
        self, node: Mapping[str, Any], at: str, others: tuple[ApplicableSchema, ...], *, root: bool = False
    ) -> dict[str, Any]:
        """The schema with its objects closed; keywords for other types are unchanged."""
        kept: dict[str, Any] = self._kept(node, at, own=True)
        here = list(self._applied([ApplicableSchema(node, at), *others], ()))
        names, patterns = property_names(here), property_patterns(here)
        more = node.get("additionalProperties", True)
        if root and not names:
            self._require_named(node, at, here)
        elif not root and is_open(more) and (not (names or patterns) or is_free(here)):
            return self._left_open(kept, node, at, here)
        if more is False:
            # The schema refuses what it does not list, so its list must not be extended.
            names = [name for name in names if name in node.get("properties", {})]
        if not is_open(more):
            patterns = list(node.get("patternProperties", {}))
        if names or root:
            kept["properties"] = {name: self._property(name, node, at, here) for name in names}
        if patterns:
            kept["patternProperties"] = {one: self._named_by(one, node, at, here) for one in patterns}
        always = (one.schema.get("required", ()) for one in here if one.how == "always")
        if required := list(dict.fromkeys(name for names in always for name in names)):
            kept["required"] = required
        described = isinstance(more, dict) and not is_open(more) and not root
        kept["additionalProperties"] = self._described(more, at, here) if described else False
        if not described and more is not False:
            self._found.notes.append(
                f'{at}: "additionalProperties": false was added, so unreviewed arguments are refused'
            )
        if root and patterns:
            self._found.notes.append(f"{at}: arguments named by a pattern are refused; each needs a name")
        return kept

    def _require_named(self, node: Mapping[str, Any], at: str, here: list[ApplicableSchema]) -> None:
        more = node.get("additionalProperties", True)
        if (isinstance(more, dict) and not is_open(more)) or any(
            "minProperties" in one.schema for one in here
        ):
            self._refuse(at, "takes arguments of any name; list them as properties")

    def _left_open(
        self, kept: dict[str, Any], node: Mapping[str, Any], at: str, here: list[ApplicableSchema]
    ) -> dict[str, Any]:
        """An object with free keys: the schemas of listed keys keep their meaning."""
        for key in ("properties", "patternProperties"):
            if key in node:
                kept[key] = self._member(key, node[key], f"{at}/{key}")
        if is_object(node) or "additionalProperties" in node:
            kept["additionalProperties"] = ANY_VALUE
        if all("object" in self._holds(one.schema, ()) for one in here if one.how == "always"):
            self._note_free(at, "takes any keys")
        return kept

    def _described(self, more: Mapping[str, Any], at: str, here: list[ApplicableSchema]) -> Any:
        """The schema of free keys."""
        others = tuple(one for one in schemas_for_other_properties(here) if one.schema is not more)
        return self._closed(more, f"{at}/additionalProperties", others)

    def _property(self, name: str, node: Mapping[str, Any], at: str, here: list[ApplicableSchema]) -> Any:
        """A property: the schema's own subschema, else one that always applies, combined with all others."""
        self._name(name, f"{at}/properties")
        self._step(len(here))
        said = list(schemas_for_property(name, here))
        own = name in node.get("properties", {})
        first = said[0] if own else next((one for one in said if one.how == "always"), None)
        if first is None:
            return self._closed(_ANYTHING, f"{at}/properties{pointer_to(name)}", tuple(said))
        return self._closed(first.schema, first.at, tuple(one for one in said if one is not first))

    def _named_by(self, pattern: str, node: Mapping[str, Any], at: str, here: list[ApplicableSchema]) -> Any:
        self._step(len(here))
        own = node.get("patternProperties", {}).get(pattern, _ANYTHING)
        others = tuple(one for one in schemas_for_other_properties(here) if one.schema is not own)
        return self._closed(own, f"{at}/patternProperties{pointer_to(pattern)}", others)

    def _array(
        self, kept: dict[str, Any], node: Mapping[str, Any], at: str, others: tuple[ApplicableSchema, ...]
    ) -> dict[str, Any]:
        here = list(self._applied([ApplicableSchema(node, at), *others], ()))
        if not any(_OF_ARRAYS & one.schema.keys() for one in here):
            kinds = node.get("type")
            if kinds == "array" or (isinstance(kinds, list) and "array" in kinds):
                self._note_free(at, "takes any items")
            return kept
        said = list(schemas_for_items(here))
        own_prefix = node.get("prefixItems", ())
        for index, one in enumerate(own_prefix):
            mine = [*own_prefix, node.get("items")]
            rest = tuple(other for other in said if not any(other.schema is each for each in mine))
            kept.setdefault("prefixItems", []).append(self._closed(one, f"{at}/prefixItems/{index}", rest))
        if "items" in node:
            own = node["items"]
            rest = tuple(one for one in said if one.schema is not own and one.at != f"{at}/prefixItems")
            kept["items"] = self._closed(own, f"{at}/items", rest)
        elif any("items" in one.schema and self._holds(one.schema["items"], ()) for one in here):
            kept["items"] = self._closed(_ANYTHING, f"{at}/items", tuple(said))
        return kept

    def _kept(self, node: Any, at: str, *, own: bool = False) -> Any:
        """A schema with unchanged meaning. `own`: without the keywords by which a location closes itself."""
        if not isinstance(node, dict):
            return node
        for keyword in sorted(_NOT_OURS & node.keys()):
            self._refuse(f"{at}/{keyword}", "is not allowed here; write the schema out without it")
        left = _OF_PLACES if own else ()
        kept = {
            key: self._member(key, value, f"{at}/{key}") for key, value in node.items() if key not in left
        }
        if not own and is_object(node) and is_open(node.get("additionalProperties", True)):
            kept["additionalProperties"] = ANY_VALUE  # the same, in the form that the contract requires
        return kept

    def _member(self, key: str, value: Any, at: str) -> Any:
        if key == "$ref":
            return self._reference(value, at.removesuffix("/$ref"), is_closed=False)
        if key in MAPS:
            for name in value:
                self._name(name, at)
            return {name: self._kept(child, f"{at}{pointer_to(name)}") for name, child in value.items()}
        if key in LISTS:
            return [self._kept(child, f"{at}/{index}") for index, child in enumerate(value)]
        return self._kept(value, at) if key in SCHEMAS else value

    def _reference(self, reference: str, at: str, *, is_closed: bool) -> str:
        """A reference to a definition, which is written unchanged or closed. Both forms may be needed."""
        name = self._defined(reference)
        if name is None:
            self._refuse(
                f"{at}/$ref",
                f"{reference!a} names no definition of the document; write what it names under $defs, and "
                "#/$defs/NAME here",
            )
            return reference
        written = name
        while not is_closed and (written in self._definitions or written == name):
            written += ".open"
        if written not in self._written:
            self._written[written] = None
            self._owed.append((name, written, is_closed))
        return f"#/$defs/{written}"

    def _defined(self, reference: Any) -> str | None:
        # With a pointer escape (RFC 6901 section 3) the text names another definition.
        if not is_definition_reference(reference) or "~" in reference:
            return None
        name: str = reference.removeprefix("#/$defs/")
        return name if name in self._definitions else None

    def _applied(
        self, schemas: Iterable[ApplicableSchema], within: tuple[str, ...]
    ) -> Iterator[ApplicableSchema]:
        """These schemas, and all that they apply to the same value."""
        for one in schemas:
            self._step()
            if not isinstance(one.schema, dict):
                continue
            yield one
            yield from self._applied(same_value_schemas(one), within)
            name = self._defined(one.schema.get("$ref"))
            if name is None:
                continue
            if name in within:
                self._refuse(one.at, f"{name!a} applies to itself; write it without that")
                continue
            target = ApplicableSchema(self._definitions[name], self._definition_at(name), one.how)
            yield from self._applied([target], (*within, name))

    def _step(self, count: int = 1) -> None:
        self._steps += count
        if self._steps > _MAX_STEPS:
            raise ContractError("bad_schema", "combines too many subschemas; write it flatter")

    def _definition_at(self, name: str) -> str:
        return f"{self._at}/$defs{pointer_to(name)}"

    def _name(self, name: str, at: str) -> None:
        if name == "__proto__" or any(map(is_hidden, name)):
            self._refuse(at, f"{name!a} is not a name people can review; the server must rename it")

    def _refuse(self, at: str, why: str) -> None:
        if f"{at}: {why}" not in self._found.problems:
            self._found.problems.append(f"{at}: {why}")

    def _note_free(self, at: str, what: str) -> None:
        note = (
            f"{at}: {what}, which no policy can evaluate: a call with it requires the group `unseen`, unless a "
            "permit names it in @unseen; declare what it holds if you know"
        )
        if note not in self._found.notes:
            self._found.notes.append(note)


def is_hidden(char: str) -> bool:
    """Whether a character is invisible, except line breaks and tabs."""
    return char not in "\n\t\r" and unicodedata.category(char) in {"Cc", "Cf", "Co", "Zl", "Zp"}
