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
from typing import Any, Final

import referencing
from jsonschema.exceptions import ValidationError

from countersign.contract import JSON, ToolManifest, pointer_tokens
from countersign.contract.json_schema import require_json_schema, validator_of
from policy_service.domain.question import ArgsRefusedError, Encoded
from policy_service.facts.cedar_types import RecordField, TypeReader

MAX_ERRORS: Final = 3
"""How many of the problems with one call's args are told; the rest follow from these or come next time."""

_QUOTED: Final = 200  # characters of a jsonschema message; a longer one quotes a long value and helps nobody


class InputCodec:
    """One tool's args, from JSON to `context.input`. Built once per manifest.

    Raises:
        ValueError: the manifest's schema is not one, or holds what no call could pass.
    """

    def __init__(self, manifest: ToolManifest) -> None:
        schema: dict[str, Any] = dict(manifest.args)
        require_json_schema(schema)
        self._validator = validator_of(schema)
        self._record: RecordField = TypeReader(schema).record_of(schema)
        self._secret = frozenset(pointer_tokens(pointer)[0] for pointer in manifest.secret)
        self._tool = manifest.tool

    def __getstate__(self) -> dict[str, Any]:
        """All but the validator, which is made anew: another process that has checked a manifest sends its codec."""
        return {name: value for name, value in self.__dict__.items() if name != "_validator"} | {
            "schema": self._validator.schema
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._validator = validator_of(state.pop("schema"))
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
