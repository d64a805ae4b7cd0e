"""Args through the reviewed manifest: checked by its JSON Schema, then typed for Cedar.

Rules kept here (design section 4): unknown properties are refused; `input` holds only String, bounded Long,
Bool, decimal (more than four places refused), Set and Record, each decided by the manifest and never by the
value; an enum is a String that JSON Schema checks. What Cedar cannot weigh (null, arrays other than unique
scalars, maps with free keys, unions of types, plain numbers) stays out of `input` and is named as unseen when
the args carry it. Values become typed Cedar JSON only by this code, so an argument like `{"__extn": ...}` can
never turn into a value of its own choosing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from decimal import Decimal, localcontext
from typing import Any, Final

import referencing
from jsonschema import Draft202012Validator
from jsonschema.exceptions import SchemaError, ValidationError
from jsonschema.validators import extend

from countersign.contract import (
    JSON,
    RESERVED_KEYS,
    ContractError,
    ToolManifest,
    canonicalize,
    pointer_tokens,
)
from countersign.contract.patterns import pattern_keywords, require_patterns
from policy_service.domain.question import ArgsRefusedError, Encoded
from policy_service.facts.cedar_types import RecordField, TypeReader

MAX_ERRORS: Final = 3
"""How many of the problems with one call's args are told; the rest follow from these or come next time."""

_DIGITS: Final = 700  # the largest float over the smallest has a quotient of 633 digits
_QUOTED: Final = 200  # characters of a jsonschema message; a longer one quotes a long value and helps nobody


class InputCodec:
    """One tool's args, from JSON to `context.input`. Built once per manifest.

    Raises:
        ValueError: the manifest's schema is not one, or holds what no call could pass.
    """

    def __init__(self, manifest: ToolManifest) -> None:
        schema: dict[str, Any] = dict(manifest.args)
        _require_usable(schema)
        # An empty registry: a reference out of the document is an error here, never a request to somewhere.
        self._validator = _Validator(schema, registry=referencing.Registry())
        self._record: RecordField = TypeReader(schema).record_of(schema)
        self._secret = frozenset(pointer_tokens(pointer)[0] for pointer in manifest.secret)
        self._tool = manifest.tool

    def __getstate__(self) -> dict[str, Any]:
        """All but the validator, which is made anew: another process that has checked a manifest sends its codec."""
        return {name: value for name, value in self.__dict__.items() if name != "_validator"} | {
            "schema": self._validator.schema
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._validator = _Validator(state.pop("schema"), registry=referencing.Registry())
        self.__dict__.update(state)

    @property
    def cedar_type(self) -> Mapping[str, Any]:
        """The type of `context.input` for the Cedar schema."""
        return self._record.cedar_type

    @property
    def may_be_unseen(self) -> frozenset[str]:
        """Names of the fields that would be unseen if a call carried them."""
        return frozenset(self._record.unseen_names(()))

    def encode(self, args: JSON) -> Encoded:
        """The args as policy sees them.

        Raises:
            ArgsRefusedError: they do not fit the manifest; the text says where.
        """
        try:
            problems = [
                self._told(error) for error, _ in zip(self._errors(args), range(MAX_ERRORS), strict=False)
            ]
        except (RecursionError, referencing.exceptions.Unresolvable) as error:
            raise ArgsRefusedError(f"the schema of {self._tool!r} cannot be applied to these args") from error
        if problems:
            raise ArgsRefusedError("; ".join(problems))
        unseen: list[str] = []
        value = self._record.encode(args, (), unseen)
        return Encoded(input=value, unseen=tuple(sorted(unseen)))

    def _errors(self, args: JSON) -> Iterator[ValidationError]:
        return iter(self._validator.iter_errors(args))

    def _told(self, error: ValidationError) -> str:
        place = "/".join(str(part) for part in error.absolute_path) or "args"
        path = error.absolute_path
        # at the root a message quotes everything
        hidden = path[0] in self._secret if path else bool(self._secret)
        if hidden or len(error.message) > _QUOTED:
            return f"{place}: does not keep {error.validator!r} of the manifest of {self._tool!r}"
        return f"{place}: {error.message}"


def _multiple_of(
    validator: Any, divisor: float, instance: Any, schema: Mapping[str, Any]
) -> Iterator[ValidationError]:
    """`multipleOf` on decimal digits: in binary floating point 0.07 is no multiple of 0.01."""
    if validator.is_type(instance, "number") and not _divides(divisor, instance):
        yield ValidationError(f"{instance!r} is not a multiple of {divisor!r}")


def _divides(divisor: float, instance: float) -> bool:
    with localcontext() as context:
        context.prec = _DIGITS
        return Decimal(repr(instance)) % Decimal(repr(divisor)) == 0


def _unique_items(
    validator: Any, wanted: bool, instance: Any, schema: Mapping[str, Any]
) -> Iterator[ValidationError]:
    """`uniqueItems` by canonical bytes: linear, where comparing each with each would let a list stop the service."""
    if not wanted or not validator.is_type(instance, "array"):
        return
    if len({canonicalize(item) for item in instance}) != len(instance):
        yield ValidationError("the items are not unique")


_Validator: Any = extend(  # type: ignore[no-untyped-call]
    Draft202012Validator,
    {"multipleOf": _multiple_of, "uniqueItems": _unique_items, **pattern_keywords(ValidationError)},
)


def _require_usable(schema: Mapping[str, Any]) -> None:
    try:
        Draft202012Validator.check_schema(schema)
    except SchemaError as error:
        place = "/".join(str(part) for part in error.absolute_path)
        raise ValueError(f"args/{place} is not JSON Schema 2020-12: {error.message}") from error
    try:
        require_patterns(schema)
    except ContractError as error:
        raise ValueError(str(error)) from error
    for node in _nodes(schema):
        properties = node.get("properties")
        if isinstance(properties, dict) and (reserved := RESERVED_KEYS.intersection(properties)):
            raise ValueError(f"property {min(reserved)!r} is reserved by the policy engine; rename it")


def _nodes(value: Any) -> Iterator[Mapping[str, Any]]:
    if isinstance(value, dict):
        yield value
    children = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    for child in children:
        yield from _nodes(child)
