"""The proposal form: from arguments to fields, and from fields back to the same arguments.

Pure.

- A field submitted unchanged yields the value it was rendered from, byte for byte.
- Text that a form could change or hide (other line breaks, invisible characters) is edited as escaped JSON.
- A field is parsed by its type, and nothing is guessed: spaces are kept and numbers are not rounded.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from countersign.contract import JSON, ContractError, canonicalize, load
from policy_service.channels.presentation.arguments import FoldedText, fold
from policy_service.channels.presentation.deceptive_text import hidden_positions
from policy_service.channels.presentation.marked_text import Marked, TextFinding, mark, typed_json
from policy_service.errors import InvalidRequestError
from policy_service.queries.effects import Money
from policy_service.queries.proposal_views import ProposalField, ProposalForm
from policy_service.queries.review_models import ArgChange

InputShape: TypeAlias = Literal["line", "lines", "integer", "boolean", "choice", "json"]

MAX_PROPOSAL_BYTES = 1_048_576  # fits the largest arguments, urlencoded
_LONG_LINE = 80  # longer texts get several lines
_WHOLE = re.compile(r"-?(?:0|[1-9][0-9]{0,15})\Z", re.ASCII)
_NO_ERRORS: Mapping[str, str] = {}


@dataclass(frozen=True, slots=True)
class FieldView:
    """One argument as the form shows it."""

    place: int
    field: ProposalField
    name: Marked
    shape: InputShape
    text: str
    left_out: bool
    error: str = ""


@dataclass(frozen=True, slots=True)
class ChangedArg:
    """One argument before and after, marked."""

    name: Marked
    read: FoldedText
    now: FoldedText
    read_money: Money | None = None
    now_money: Money | None = None

    @property
    def findings(self) -> tuple[TextFinding, ...]:
        """Findings in the proposed value."""
        return self.name.findings + self.now.whole.findings


def field_views(
    form: ProposalForm, sent: Mapping[str, str] | None = None, errors: Mapping[str, str] = _NO_ERRORS
) -> tuple[FieldView, ...]:
    """The fields: with the effect's arguments, or as somebody filled them in."""
    return tuple(
        FieldView(
            place=place,
            field=field,
            name=mark(field.name),
            shape=input_shape(field),
            text=_text(field) if sent is None else sent.get(f"value_{place}", ""),
            left_out=not field.present if sent is None else f"out_{place}" in sent,
            error=errors.get(field.name, ""),
        )
        for place, field in enumerate(form.fields)
    )


def field_names(form: ProposalForm) -> tuple[frozenset[str], frozenset[str]]:
    """The names of required fields, and of optional checkboxes."""
    places = range(len(form.fields))
    optional = (place for place in places if not form.fields[place].required)
    return frozenset(f"value_{n}" for n in places), frozenset(f"out_{n}" for n in optional)


def input_shape(field: ProposalField) -> InputShape:
    """How an argument is edited: as plain text if that cannot deceive or change it, otherwise as JSON."""
    if not field.present:
        return {"text": "line", "integer": "integer", "boolean": "boolean", "choice": "choice"}.get(
            field.kind, "json"
        )  # type: ignore[return-value]
    if field.kind == "choice":
        return "choice" if field.value in field.choices else "json"
    if field.kind == "boolean":
        return "boolean" if isinstance(field.value, bool) else "json"
    if field.kind == "integer":
        return "integer" if type(field.value) is int else "json"
    if field.kind == "text" and isinstance(field.value, str):
        return _shape_of_text(field.value)
    return "json"


def _shape_of_text(text: str) -> InputShape:
    if hidden_positions(text) or not text.replace("\n", "").isprintable():
        return "json"
    return "lines" if "\n" in text or len(text) > _LONG_LINE else "line"


def _text(field: ProposalField) -> str:
    shape = input_shape(field)
    if not field.present:
        return ""
    if isinstance(field.value, str) and shape != "json":
        return field.value
    return typed_json(canonicalize(field.value).decode())


def read_fields(form: ProposalForm, sent: Mapping[str, str]) -> tuple[dict[str, JSON], dict[str, str]]:
    """The submitted arguments, and the errors by name."""
    args: dict[str, JSON] = {}
    errors: dict[str, str] = {}
    for place, field in enumerate(form.fields):
        text = sent[f"value_{place}"]
        if f"out_{place}" in sent:
            if not field.present and text not in ("", "false"):
                errors[field.name] = "it is left out and has a value; uncheck that, or clear it"
            continue
        try:
            args[field.name] = _value(field, text)
        except InvalidRequestError as error:
            errors[field.name] = error.detail
    return args, errors


def _value(field: ProposalField, text: str) -> JSON:
    shape = input_shape(field)
    if shape == "line":
        return text
    if shape == "lines":
        return text.replace("\r\n", "\n")
    if shape == "choice":
        if text not in field.choices:
            raise InvalidRequestError(f"choose one of {', '.join(field.choices)}")
        return text
    if shape == "boolean":
        if text not in ("true", "false"):
            raise InvalidRequestError("choose true or false")
        return text == "true"
    if shape == "integer":
        if _WHOLE.match(text.strip()) is None:
            raise InvalidRequestError("write a whole number, in digits, like 1200")
        return int(text)
    return parse_json(text)


def parse_json(text: str) -> JSON:
    """JSON under the same strict rules as a submission.

    Raises InvalidRequestError.
    """
    try:
        return load(text.strip().encode("utf-8", "surrogatepass"))
    except ContractError as error:
        raise InvalidRequestError(f"this is not valid JSON: {error}") from error


def change_lines(changes: Sequence[ArgChange]) -> tuple[ChangedArg, ...]:
    """A difference, with deceptive text marked."""
    return tuple(
        ChangedArg(
            mark(change.name),
            fold(_shown(change.read), address=change.recipient),
            fold(_shown(change.now), address=change.recipient),
            change.read_money,
            change.now_money,
        )
        for change in changes
    )


def _shown(canonical: str) -> str:
    """A string's own characters, any other value as JSON."""
    value = json.loads(canonical) if canonical.startswith('"') else canonical
    return value if isinstance(value, str) else canonical
