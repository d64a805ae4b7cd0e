"""What all requests and responses share: strictness, times, digests, parsing and serialisation.

Bytes pass `admission` before pydantic reads them, because common parsers keep the last of two duplicate keys. Pydantic
reads the canonical form of what was admitted.
"""

import re
from datetime import UTC, datetime
from typing import Annotated, Final, TypeVar

import orjson
from pydantic import (
    AfterValidator,
    AwareDatetime,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    JsonValue,
    PlainSerializer,
    Strict,
    StringConstraints,
    ValidationError,
    WithJsonSchema,
)
from pydantic_core import ErrorDetails

from countersign.contract.admission import ARGS_LIMITS, Limits, admit, canonical_bytes
from countersign.contract.errors import AdmissionError, WireError
from countersign.contract.jws import MAX_RECEIPT_BYTES, MAX_TOKEN_BYTES

T = TypeVar("T")
Model = TypeVar("Model", bound="WireModel")

BODY_LIMITS: Final = Limits(max_bytes=1_048_576, max_depth=72, max_nodes=40_000)
"""A submission of a hundred effects; the args of each are admitted again with their own limits."""

_UNKNOWN: Final = frozenset({"extra_forbidden", "unexpected_keyword_argument"})
_RFC3339: Final = re.compile(r"\d{4}-\d{2}-\d{2}T\d{2}:\d{2}:\d{2}(?:\.\d{1,6})?Z\Z", re.ASCII)


class WireModel(BaseModel):
    """Base of every request and response: strict types, no unknown field, frozen."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)


def _read_zulu(value: object) -> object:
    if not isinstance(value, str):
        return value
    if not _RFC3339.match(value):
        raise ValueError("write the time in UTC, like 2026-11-21T22:00:00.123456Z")
    return datetime.fromisoformat(value)


def format_instant(at: datetime) -> str:
    """RFC 3339 in UTC with `Z`; microseconds only when there are some.

    Raises:
        ValueError: the time is not aware.
    """
    if at.tzinfo is None:
        raise ValueError(f"{at!r} has no time zone; use aware UTC times")
    return at.astimezone(UTC).replace(tzinfo=None).isoformat() + "Z"


Instant = Annotated[
    AwareDatetime,
    BeforeValidator(_read_zulu),
    PlainSerializer(format_instant, return_type=str, when_used="json"),
    WithJsonSchema({"type": "string", "format": "date-time", "examples": ["2026-11-21T22:00:00.123456Z"]}),
]
"""A moment: aware datetime in Python, RFC 3339 with `Z` on the wire."""

Digest = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]
"""SHA-256 in lower-case hex."""

_COMPACT = r"^[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+$"

Jws = Annotated[str, StringConstraints(pattern=_COMPACT, max_length=MAX_TOKEN_BYTES)]
"""A signed compact token; verify it before trusting it."""

Receipt = Annotated[str, StringConstraints(pattern=_COMPACT, max_length=MAX_RECEIPT_BYTES)]
"""A signed compact receipt: longer than a release, because it names every effect."""

Name = Annotated[str, StringConstraints(min_length=1, max_length=200)]
"""A short name or id."""

AttemptId = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_~-][A-Za-z0-9._~-]{0,199}$")]
"""A caller's name of an attempt, valid in a path: unreserved characters (RFC 3986 section 2.3), no leading dot."""

MAX_TEXT_CHARS: Final = 4_000
"""The most that people still read; a longer text belongs in a ticket."""

Text = Annotated[str, StringConstraints(max_length=MAX_TEXT_CHARS)]
"""Text of a person or an agent: untrusted, shown escaped."""

Args = Annotated[dict[str, JsonValue], Field(description="The arguments, one JSON object.", repr=False)]


def _require_result(value: JsonValue) -> JsonValue:
    """A result is stored, read again and used for the args of a compensation, so the limits of args apply."""
    try:
        admit(value, ARGS_LIMITS)
    except AdmissionError as error:
        raise ValueError(
            f"the result cannot be kept ({error}); report a smaller part of it, or none"
        ) from error
    return value


Result = Annotated[JsonValue, AfterValidator(_require_result)]
"""What a tool returned, within the limits of args."""

Many = Annotated[tuple[T, ...], Strict(False)]
"""A tuple that may be given as a list, as in JSON."""


def parse(model: type[Model], raw: bytes, limits: Limits = BODY_LIMITS) -> Model:
    """Read a body strictly.

    Raises:
        AdmissionError: not strict I-JSON.
        WireError: `unknown_field` or `invalid_request`, with the pointer of every problem.
    """
    return _validated(model, canonical_bytes(raw, limits))


def dump(model: WireModel) -> bytes:
    """Write a model as JSON with sorted keys, the form `parse` reads fastest; absent optional fields are left out."""
    return orjson.dumps(orjson.loads(model.model_dump_json(exclude_none=True)), option=orjson.OPT_SORT_KEYS)


def _validated(model: type[Model], canonical: bytes) -> Model:
    try:
        return model.model_validate_json(canonical)
    except ValidationError as error:
        found = error.errors(include_url=False, include_input=False, include_context=False)
        problems = tuple(
            (_pointer(item["loc"]), item["msg"]) for item in found if not _is_derived_error(item, found)
        )
        code = "unknown_field" if any(item["type"] in _UNKNOWN for item in found) else "invalid_request"
        listed = "; ".join(f"{pointer}: {message}" for pointer, message in problems[:5])
        raise WireError(code, f"the body is not a {model.__name__}: {listed}", problems) from None


def _pointer(place: tuple[int | str, ...]) -> str:
    return "".join(f"/{part}" for part in place)


def _is_derived_error(item: ErrorDetails, found: list[ErrorDetails]) -> bool:
    """Whether a container is only too short because one of its items was refused."""
    place = item["loc"]
    return item["type"] == "too_short" and any(
        other["loc"][: len(place)] == place and len(other["loc"]) > len(place) for other in found
    )
