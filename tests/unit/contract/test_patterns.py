"""Patterns of strangers run in bounded time, or are refused by their place. With Python's `re` this never ends."""

from typing import Any

import jsonschema
import pytest

from countersign.contract import ContractError
from countersign.contract.json_schema import pattern_keywords, pattern_searcher, require_patterns
from countersign.contract.schema_rules import require_closed_schema

LONG = "a" * 50_000 + "!"

EVIL = ["^(a+)+$", "^(a|a)*$", r"^(\w+\s?)*$", "^(a*)*b$"]


FOUND: dict[str, tuple[str, str, bool]] = {
    **{pattern: (pattern, LONG, False) for pattern in EVIL},  # answered at once
    "anywhere in the text": ("b", "abc", True),
    "nowhere": ("x", "abc", False),
    "from beginning to end": ("^[A-Z]{3}$", "USD", True),
    "a line after the end is no end": ("^[A-Z]{3}$", "USD\n", False),
    "an escaped character": ("^[^\\u0000]*$", "a\0b", False),
    "an empty pattern": ("", "", True),
    "letters of everywhere": (r"^\w+$", "größe", True),
}


@pytest.mark.parametrize(("pattern", "text", "found"), FOUND.values(), ids=FOUND.keys())
def test_a_pattern_means_what_json_schema_means(pattern: str, text: str, found: bool) -> None:
    assert pattern_searcher(pattern)(text) is found


REFUSED: dict[str, tuple[str, str]] = {
    "looking ahead": ("(?=a)b", "look-around"),
    "looking behind": ("(?<!a)b", "look-around"),
    "a reference to a group": (r"(a)\1", "backreferences"),
    "too large a repetition": ("(a{1000}){1000}", "size limit"),
    "no pattern at all": ("[", "unclosed"),
}


@pytest.mark.parametrize(("pattern", "why"), REFUSED.values(), ids=REFUSED.keys())
def test_unbounded_patterns_are_refused_with_the_reason(pattern: str, why: str) -> None:
    with pytest.raises(ContractError, match=f"cannot be run in bounded time.*{why}") as refused:
        pattern_searcher(pattern)
    assert refused.value.code == "bad_pattern"


def test_a_long_pattern_is_shortened_in_errors() -> None:
    with pytest.raises(ContractError) as refused:
        pattern_searcher("x" * 9_000 + "(?=a)")
    assert len(str(refused.value)) < 500


BAD = {"type": "string", "pattern": "(?=a)"}


PLACES: dict[str, tuple[dict[str, Any], str]] = {
    "an argument": ({"properties": {"x": BAD}}, "properties/x/pattern: "),
    "an item": ({"properties": {"x": {"type": "array", "items": BAD}}}, "properties/x/items/pattern: "),
    "a definition": ({"$defs": {"Name": BAD}}, "$defs/Name/pattern: "),
    "the names of free keys": ({"patternProperties": {"(?=a)": {}}}, "patternProperties: "),
    "one of several": ({"anyOf": [{"type": "null"}, BAD]}, "anyOf/1/pattern: "),
}


@pytest.mark.parametrize(("schema", "place"), PLACES.values(), ids=PLACES.keys())
def test_a_schema_with_such_a_pattern_is_refused_by_its_place(schema: dict[str, Any], place: str) -> None:
    with pytest.raises(ContractError) as refused:
        require_patterns(schema)
    assert str(refused.value).startswith(f"args/{place}")


def test_an_argument_may_be_called_pattern() -> None:
    require_patterns({"properties": {"pattern": {"type": "string"}, "x": {"const": {"pattern": "(?=a)"}}}})


KEYWORDS = pattern_keywords(jsonschema.ValidationError)
VALIDATOR: Any = jsonschema.validators.extend(jsonschema.Draft202012Validator, KEYWORDS)
NAMED = {"patternProperties": {EVIL[0]: {}}}
UNEVALUATED: dict[str, tuple[dict[str, Any], Any]] = {
    "unevaluatedProperties": ({**NAMED, "unevaluatedProperties": False}, {"b": 1}),
    "unevaluatedItems": ({"unevaluatedItems": {**NAMED, "unevaluatedProperties": False}}, [{"b": 1}]),
}


@pytest.mark.parametrize("keyword", UNEVALUATED)
def test_no_pattern_is_run_for_what_is_left_over(keyword: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A belt: such a schema is refused where it is read. jsonschema would run its patterns with `re`."""
    schema, value = UNEVALUATED[keyword]
    run: list[str] = []
    monkeypatch.setattr("re.search", lambda pattern, *_: run.append(pattern))
    (error,) = VALIDATOR(schema).iter_errors(value)
    assert (error.validator, run) == (keyword, [])
    assert "is not run here" in error.message


INERT = {  # keywords of jsonschema that hold values and no schema
    *("const", "dependentRequired", "enum", "exclusiveMaximum", "exclusiveMinimum", "format", "maxItems"),
    *("maxLength", "maxProperties", "maximum", "minItems", "minLength", "minProperties", "minimum"),
    *("multipleOf", "pattern", "required", "type", "uniqueItems"),
}
SHAPES: tuple[Any, ...] = (BAD, [BAD], {"x": BAD})


@pytest.mark.parametrize("keyword", sorted(set(jsonschema.Draft202012Validator.VALIDATORS) - INERT))
def test_every_keyword_that_holds_a_schema_is_walked_or_refused(keyword: str) -> None:
    """Every keyword that jsonschema descends into must be handled here."""

    def stopped(holds: Any) -> bool:
        try:
            schema = {"type": "object", "additionalProperties": False, "$defs": {"x": {keyword: holds}}}
            require_closed_schema(schema)
            require_patterns(schema)
        except ContractError:
            return True
        return False

    assert any(stopped(shape) for shape in SHAPES)
