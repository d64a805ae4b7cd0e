"""The form by which other arguments are proposed: from values to fields, and from fields back to the same values.

Pure. Rules kept here:
- a field that is sent as it was drawn gives back the value it was drawn from, to the byte;
- text that a form could change or hide (other line breaks, characters that cannot be seen) is written as JSON text with
  every such character escaped;
- what a field holds is judged by its name, and nothing is guessed: no spaces are cut off, no number is rounded.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from countersign.contract import JSON, ContractError, canonicalize, load
from policy_service.channels.showing.arguments import Folded, folded
from policy_service.channels.showing.deceptions import hidden_positions
from policy_service.channels.showing.findings import Finding
from policy_service.channels.showing.marking import Marked, mark, typed
from policy_service.errors import InvalidRequestError
from policy_service.queries.edit_views import EditField, EditForm
from policy_service.queries.effect_text import Money
from policy_service.queries.review_models import Change

Shape: TypeAlias = Literal["line", "lines", "integer", "boolean", "choice", "json"]

MAX_FORM_BYTES = 1_048_576  # the largest arguments, each byte of them urlencoded, with room
_LONG_LINE = 80  # characters; a longer text is easier to read in several lines
_WHOLE = re.compile(r"-?(?:0|[1-9][0-9]{0,15})\Z", re.ASCII)
_NO_ERRORS: Mapping[str, str] = {}


@dataclass(frozen=True, slots=True)
class FieldView:
    """One argument as the form draws it."""

    place: int
    field: EditField
    name: Marked
    shape: Shape
    text: str
    left_out: bool
    error: str = ""


@dataclass(frozen=True, slots=True)
class ChangedArg:
    """One argument before and after, marked."""

    name: Marked
    read: Folded
    now: Folded
    read_money: Money | None = None
    now_money: Money | None = None

    @property
    def findings(self) -> tuple[Finding, ...]:
        """What can mislead in what is proposed."""
        return self.name.findings + self.now.whole.findings


def field_views(
    form: EditForm, sent: Mapping[str, str] | None = None, errors: Mapping[str, str] = _NO_ERRORS
) -> tuple[FieldView, ...]:
    """The fields: as the effect stands, or as somebody has filled them in."""
    return tuple(
        FieldView(
            place=place,
            field=field,
            name=mark(field.name),
            shape=shape_of(field),
            text=_text(field) if sent is None else sent.get(f"value_{place}", ""),
            left_out=not field.present if sent is None else f"out_{place}" in sent,
            error=errors.get(field.name, ""),
        )
        for place, field in enumerate(form.fields)
    )


def names_of_fields(form: EditForm) -> tuple[frozenset[str], frozenset[str]]:
    """What the form sends: always, and where it is ticked."""
    places = range(len(form.fields))
    optional = (place for place in places if not form.fields[place].required)
    return frozenset(f"value_{n}" for n in places), frozenset(f"out_{n}" for n in optional)


def shape_of(field: EditField) -> Shape:
    """How an argument is written: as itself where that cannot deceive or be changed on the way, else as JSON text."""
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


def _shape_of_text(text: str) -> Shape:
    if hidden_positions(text) or not text.replace("\n", "").isprintable():
        return "json"
    return "lines" if "\n" in text or len(text) > _LONG_LINE else "line"


def _text(field: EditField) -> str:
    shape = shape_of(field)
    if not field.present:
        return ""
    if isinstance(field.value, str) and shape != "json":
        return field.value
    return typed(canonicalize(field.value).decode())


def read_fields(form: EditForm, sent: Mapping[str, str]) -> tuple[dict[str, JSON], dict[str, str]]:
    """The arguments that were filled in, and what is wrong with them by name."""
    args: dict[str, JSON] = {}
    errors: dict[str, str] = {}
    for place, field in enumerate(form.fields):
        text = sent[f"value_{place}"]
        if f"out_{place}" in sent:
            if not field.present and text not in ("", "false"):
                errors[field.name] = "it is left out and has a value; untick that, or empty it"
            continue
        try:
            args[field.name] = _value(field, text)
        except InvalidRequestError as error:
            errors[field.name] = error.detail
    return args, errors


def _value(field: EditField, text: str) -> JSON:
    shape = shape_of(field)
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
    return read_json(text)


def read_json(text: str) -> JSON:
    """JSON under the same strict rules as a submission.

    Raises InvalidRequestError.
    """
    try:
        return load(text.strip().encode("utf-8", "surrogatepass"))
    except ContractError as error:
        raise InvalidRequestError(f"this is no JSON text we take: {error}") from error


def change_lines(changes: Sequence[Change]) -> tuple[ChangedArg, ...]:
    """A difference, with what can mislead in it marked."""
    return tuple(
        ChangedArg(
            mark(change.name),
            folded(_shown(change.read), address=change.recipient),
            folded(_shown(change.now), address=change.recipient),
            change.read_money,
            change.now_money,
        )
        for change in changes
    )


def _shown(canonical: str) -> str:
    """A text's own characters, as everywhere on our pages; of everything else its JSON."""
    value = json.loads(canonical) if canonical.startswith('"') else canonical
    return value if isinstance(value, str) else canonical
