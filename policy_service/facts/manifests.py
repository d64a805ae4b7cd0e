"""Arguments of a call, checked by the manifest's JSON Schema and typed for Cedar.

Unknown properties are refused. `input` holds only String, bounded Long, Bool, decimal (more than four decimal places
are refused), Set and Record. The manifest alone determines the type, never the value, so a rule means the same for
every call. An enum is a String that JSON Schema checks. What Cedar cannot evaluate stays out of `input`, and is listed
as unseen if the arguments carry it: null, unions, untyped nodes, plain numbers, maps with free keys, and arrays other
than sets of scalars. Cedar has no float, no null and no union, and a Set loses order and repeats.

Values become typed Cedar JSON only here, so an argument like `{"__extn": ...}` cannot become an extension value.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from itertools import islice
from typing import Any, Final, TypeAlias

import referencing
from jsonschema.exceptions import ValidationError

from countersign.contract import JSON, MAX_SAFE_INTEGER, ToolManifest, pointer_tokens
from countersign.contract.json_schema import require_json_schema, validator_of
from countersign.contract.schema_rules import MAX_SCHEMA_NODES
from policy_service.domain.policy_request import (
    MAX_DECIMAL_PLACES,
    EncodedArgs,
    InvalidArgsError,
    decimal_places,
    decimal_value,
)

Schema: TypeAlias = Mapping[str, Any]
Path: TypeAlias = tuple[str, ...]


@dataclass(frozen=True)
class _Scalar:
    """A Cedar type without fields, and the function that writes a JSON value in it."""

    cedar_type: Mapping[str, Any]
    write: Callable[[JSON, Path], Any]

    def encode(self, value: JSON, path: Path, unseen: list[str]) -> Any:
        return self.write(value, path)

    def unseen_names(self, path: Path) -> Iterator[str]:
        return iter(())


def _text(value: JSON, path: Path) -> str:
    if type(value) is not str:
        raise _refused(path, value, "text")
    return value


def _bool(value: JSON, path: Path) -> bool:
    if type(value) is not bool:
        raise _refused(path, value, "true or false")
    return value


def _long(value: JSON, path: Path) -> int:
    # The bound of exact JSON integers. Rules that multiply can still exceed 64 bits, which the engine reports.
    if type(value) is not int or abs(value) > MAX_SAFE_INTEGER:
        raise _refused(path, value, f"a whole number within +-{MAX_SAFE_INTEGER}")
    return value


def _decimal(value: JSON, path: Path) -> dict[str, Any]:
    if type(value) is not int and type(value) is not float:
        raise _refused(path, value, "a number")
    try:
        return decimal_value(Decimal(repr(value)))
    except ValueError as error:
        raise InvalidArgsError(f"{_name(path)}: {error}") from error


_TEXT: Final = _Scalar({"type": "String"}, _text)
_BOOL: Final = _Scalar({"type": "Boolean"}, _bool)
_LONG: Final = _Scalar({"type": "Long"}, _long)
_DECIMAL: Final = _Scalar({"type": "Extension", "name": "decimal"}, _decimal)


class _SetField:
    def __init__(self, element: _Scalar) -> None:
        self.cedar_type = {"type": "Set", "element": element.cedar_type}
        self._element = element

    def encode(self, value: JSON, path: Path, unseen: list[str]) -> list[Any]:
        if type(value) is not list:
            raise _refused(path, value, "a list")
        return [self._element.encode(item, path, unseen) for item in value]

    def unseen_names(self, path: Path) -> Iterator[str]:
        return iter(())


@dataclass(frozen=True)
class _Member:
    type: _Scalar | _SetField | RecordField | None
    required: bool


class RecordField:
    """An object with declared properties, each visible or unseen."""

    def __init__(self, members: Mapping[str, _Member]) -> None:
        self._members = members
        self.cedar_type: Mapping[str, Any] = {
            "type": "Record",
            "attributes": {
                name: {**member.type.cedar_type, "required": member.required}
                for name, member in members.items()
                if member.type is not None
            },
        }

    def encode(self, value: JSON, path: Path, unseen: list[str]) -> dict[str, Any]:
        """The record of the visible properties of this value; names of its unseen fields are appended to `unseen`.

        Raises:
            InvalidArgsError: the value is no object, or has an undeclared property.
        """
        if not isinstance(value, dict):
            raise _refused(path, value, "an object")
        record: dict[str, Any] = {}
        for name, item in value.items():
            member = self._members.get(name)
            if member is None:
                raise InvalidArgsError(f"{_name((*path, name))}: is not in the manifest; leave it out")
            if member.type is None:
                unseen.append(_name((*path, name)))
            else:
                record[name] = member.type.encode(item, (*path, name), unseen)
        return record

    def unseen_names(self, path: Path) -> Iterator[str]:
        """Names of the unseen properties, here and below."""
        for name, member in self._members.items():
            if member.type is None:
                yield _name((*path, name))
            else:
                yield from member.type.unseen_names((*path, name))


class TypeReader:
    """Derives the types of one schema document. A recursive reference is unseen."""

    def __init__(self, root: Schema) -> None:
        self._root = root
        self._inside: list[str] = []
        self._budget = MAX_SCHEMA_NODES

    def record_of(self, node: Schema) -> RecordField:
        """The record type of an object schema with only declared properties.

        Raises:
            ValueError: references unfold the schema beyond the node limit.
        """
        required = frozenset(node.get("required", ()))
        properties: Mapping[str, Any] = node.get("properties", {})
        return RecordField(
            {name: _Member(self._type_of(child), name in required) for name, child in properties.items()}
        )

    def _type_of(self, node: Any) -> _Scalar | _SetField | RecordField | None:
        self._budget -= 1
        if self._budget < 0:
            raise ValueError(
                f"args unfold to more than {MAX_SCHEMA_NODES} schema nodes; use fewer references"
            )
        if not isinstance(node, dict):
            return None
        return self._referenced(node) if "$ref" in node else self._plain(node)

    def _referenced(self, node: Schema) -> _Scalar | _SetField | RecordField | None:
        reference = str(node["$ref"])
        if reference in self._inside or not _REF_ANNOTATIONS.issuperset(node):
            return None
        self._inside.append(reference)
        try:
            return self._type_of(_target(reference, self._root))
        finally:
            self._inside.pop()

    def _plain(self, node: Schema) -> _Scalar | _SetField | RecordField | None:
        match _kind(node):
            case "string":
                return _TEXT
            case "boolean":
                return _BOOL
            case "integer":
                return _LONG
            case "number" if _is_decimal(node):
                return _DECIMAL
            case "array" if node.get("uniqueItems") is True and "prefixItems" not in node:
                element = self._type_of(node.get("items"))
                return _SetField(element) if isinstance(element, _Scalar) else None
            case "object" if node.get("additionalProperties") is False and "patternProperties" not in node:
                return self.record_of(node)
        return None


def _kind(node: Schema) -> str | None:
    """The single JSON type of all values of this node, as far as the node itself states it."""
    kind = node.get("type")
    if isinstance(kind, list):
        return str(kind[0]) if len(kind) == 1 else None
    if kind is not None:
        return str(kind)
    values: Sequence[Any] = [node["const"]] if "const" in node else node.get("enum", ())
    kinds = {_SCALARS.get(type(value)) for value in values}
    return kinds.pop() if len(kinds) == 1 else None


_SCALARS: Final = {str: "string", bool: "boolean", int: "integer"}


def _is_decimal(node: Schema) -> bool:
    """A number is a decimal if the manifest says so: by format, or by a step of at most four decimal places."""
    step = node.get("multipleOf")
    if step is None:
        return bool(node.get("format") == "decimal")
    return decimal_places(Decimal(repr(step))) <= MAX_DECIMAL_PLACES


_REF_ANNOTATIONS: Final = frozenset({"$ref", "title", "description", "default", "examples", "deprecated"})


def _target(reference: str, root: Schema) -> Any:
    node: Any = root
    for token in reference.removeprefix("#").split("/")[1:]:
        step = token.replace("~1", "/").replace("~0", "~")
        node = node.get(step) if isinstance(node, dict) else None
    return node


def _name(path: Path) -> str:
    return "/".join(part.replace("~", "~0").replace("/", "~1") for part in path)


def _refused(path: Path, value: JSON, expected: str) -> InvalidArgsError:
    return InvalidArgsError(f"{_name(path) or 'args'}: {type(value).__name__} is not {expected}")


MAX_ERRORS: Final = 3
"""Problems reported per call; the others often follow from these."""

_MAX_MESSAGE: Final = 200  # characters of a jsonschema message; a longer one quotes a long value


class InputCodec:
    """Converts one tool's arguments from JSON to `context.input`. Built once per manifest.

    Raises:
        ValueError: the manifest's schema is invalid, or no call could satisfy it.
    """

    def __init__(self, manifest: ToolManifest) -> None:
        schema: dict[str, Any] = dict(manifest.args)
        require_json_schema(schema)
        self._validator = validator_of(schema)
        self._record: RecordField = TypeReader(schema).record_of(schema)
        self._secret = frozenset(pointer_tokens(pointer)[0] for pointer in manifest.secret)
        self._tool = manifest.tool

    def __getstate__(self) -> dict[str, Any]:
        """All but the validator, which is rebuilt: a loader process sends the codec of a checked manifest."""
        return {name: value for name, value in self.__dict__.items() if name != "_validator"} | {
            "schema": self._validator.schema
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._validator = validator_of(state.pop("schema"))
        self.__dict__.update(state)

    @property
    def cedar_type(self) -> Mapping[str, Any]:
        """The type of `context.input` in the Cedar schema."""
        return self._record.cedar_type

    @property
    def possible_unseen(self) -> frozenset[str]:
        """Names of the fields that would be unseen if a call carried them."""
        return frozenset(self._record.unseen_names(()))

    def encode(self, args: JSON) -> EncodedArgs:
        """The arguments as policy sees them.

        Raises:
            InvalidArgsError: they do not match the manifest; the message names the place.
        """
        try:
            problems = [
                self._describe(error) for error in islice(self._validator.iter_errors(args), MAX_ERRORS)
            ]
        except (RecursionError, referencing.exceptions.Unresolvable) as error:
            raise InvalidArgsError(f"the schema of {self._tool!r} cannot be applied to these args") from error
        if problems:
            raise InvalidArgsError("; ".join(problems))
        unseen: list[str] = []
        value = self._record.encode(args, (), unseen)
        return EncodedArgs(input=value, unseen=tuple(sorted(unseen)))

    def _describe(self, error: ValidationError) -> str:
        place = "/".join(str(part) for part in error.absolute_path) or "args"
        path = error.absolute_path
        # at the root a message quotes all arguments
        hidden = path[0] in self._secret if path else bool(self._secret)
        if hidden or len(error.message) > _MAX_MESSAGE:
            return f"{place}: does not keep {error.validator!r} of the manifest of {self._tool!r}"
        return f"{place}: {error.message}"
