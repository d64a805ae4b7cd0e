"""An MCP tool's schema and its closed draft: never weaker, and callable with what the server lists."""

import json
from collections.abc import Iterator
from typing import Any

from hypothesis import event, given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from countersign.contract.json_schema import validator_of
from countersign.manifests.mcp_drafts import McpDraft, mcp_drafts

NAMES = ("a", "b", "xa")
SCALARS = st.sampled_from(["s", "t", 1, 2, True, None])
DEFINED = ("A", "B")
Json = dict[str, Any]

TYPES = [{"type": "string"}, {"type": "integer"}, {"type": ["object", "null"]}, {"minLength": 2}]
REFS = [f"#/$defs/{name}" for name in DEFINED]
leaves = st.one_of(
    st.sampled_from([*TYPES, *({"$ref": ref} for ref in REFS)]),
    st.builds(lambda value: {"const": value}, SCALARS),
    st.builds(lambda value: {"enum": [value, {"a": 1}]}, SCALARS),
    st.booleans() | st.just({}),
)


def objects(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Json]:
    some = st.fixed_dictionaries(
        {},
        optional={
            "type": st.sampled_from(["object", ["object", "null"], ["array", "object"]]),
            "properties": st.dictionaries(st.sampled_from(NAMES), inner, max_size=2),
            "patternProperties": st.dictionaries(st.just("^x"), inner, max_size=1),
            "required": st.lists(st.sampled_from(NAMES), unique=True, max_size=2),
            "additionalProperties": inner,
            "dependentRequired": st.just({"a": ["b"]}),
            "propertyNames": st.just({"maxLength": 2}),
            "minProperties": st.just(1),
        },
    )
    return st.one_of(some, some, composed(inner, some))


def composed(inner: st.SearchStrategy[Any], base: st.SearchStrategy[Json]) -> st.SearchStrategy[Json]:
    many = st.lists(inner, min_size=1, max_size=3)
    applicators = st.fixed_dictionaries(
        {},
        optional={
            "allOf": many, "anyOf": many, "oneOf": many, "not": inner, "if": inner, "then": inner, "else": inner,
            "dependentSchemas": st.dictionaries(st.sampled_from(NAMES), inner, max_size=1),
            "items": inner, "prefixItems": many, "contains": inner,
            "$ref": st.sampled_from(REFS),
        },
    )  # fmt: skip
    return st.builds(lambda one, other: {**one, **other}, base, applicators)


schemas = st.recursive(leaves, objects, max_leaves=8)
definitions = st.fixed_dictionaries(dict.fromkeys(DEFINED, schemas))
roots = st.builds(lambda root, defs: {**root, "type": "object", "$defs": defs}, objects(schemas), definitions)


def members(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Json]:
    return st.dictionaries(st.sampled_from((*NAMES, "z")), inner, max_size=3)


values = st.recursive(SCALARS, lambda inner: members(inner) | st.lists(inner, max_size=2), max_leaves=5)
calls = members(values)


def drafted(schema: Any) -> McpDraft:
    ((draft,), _) = mcp_drafts(json.dumps({"tools": [{"name": "t", "inputSchema": schema}]}).encode())
    return draft


def accepts(validator: Any, value: Any) -> bool | None:
    try:
        return not any(True for _ in validator.iter_errors(value))
    except RecursionError:  # a schema that applies to itself
        return None


def applied(node: Any, root: Json, within: tuple[str, ...] = ()) -> Iterator[Json]:
    """The applicators of one value, as in the core specification, section 10.2."""
    if not isinstance(node, dict):
        return
    yield node
    inner = [one for key in ("allOf", "anyOf", "oneOf") for one in node.get(key, ())]
    inner += [node[key] for key in ("not", "if", "then", "else") if key in node]
    inner += node.get("dependentSchemas", {}).values()
    for one in inner:
        yield from applied(one, root, within)
    name = node.get("$ref", "").removeprefix("#/$defs/")
    if name and name not in within:
        yield from applied(root["$defs"][name], root, (*within, name))


def lists_all(value: Any, here: list[Json], root: Json) -> bool:
    """Whether a schema lists every key of a value, at any depth."""
    here = [each for one in here for each in applied(one, root)]
    if isinstance(value, dict):
        for name, child in value.items():
            said = [one["properties"][name] for one in here if name in one.get("properties", {})]
            if not said or not lists_all(child, said, root):
                return False
    if isinstance(value, list):
        said = [one["items"] for one in here if "items" in one]
        return all(bool(said) and lists_all(child, said, root) for child in value)
    return True


@settings(max_examples=1_000 if settings().max_examples > 1_000 else 50)  # by HYPOTHESIS_PROFILE
@given(schema=roots, args=st.lists(calls, min_size=5, max_size=10))
def test_composed_schema_is_never_weaker_and_stays_callable(schema: Json, args: list[Json]) -> None:
    draft = drafted(schema)
    if draft.manifest is None:
        event("refused")
        assert all(problem.startswith("/inputSchema") for problem in draft.problems)
        return
    event("drafted")
    original, closed = Draft202012Validator(schema), validator_of(draft.manifest.args)
    for one in args:
        before, after = accepts(original, one), accepts(closed, one)
        assert before is None or after is None or before or not after, (one, draft.manifest.args)
        if before and lists_all(one, [schema], schema):
            event("a call of what is listed")
            assert after, (one, draft.manifest.args)
