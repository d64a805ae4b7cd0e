"""Parse forms strictly: one urlencoded body, known fields, each once.

Each route names its fields. Anything else (a repeated or unknown field, a file, a second encoding) is refused
rather than ignored, so that no parser behind us can read the same bytes differently.
"""

from collections.abc import Collection
from urllib.parse import parse_qsl

from starlette.requests import Request

from policy_service.channels.requests import media_type, read_unidentified_body
from policy_service.errors import InvalidRequestError

MAX_FORM_BYTES = 65_536  # fits a reason of MAX_TEXT_CHARS in any script
_MAX_FIELDS = 64  # a batch has a checkbox for each line


async def read_form(
    request: Request,
    required: Collection[str],
    optional: Collection[str] = (),
    *,
    max_bytes: int = MAX_FORM_BYTES,
    max_fields: int = _MAX_FIELDS,
) -> dict[str, str]:
    """The fields of the body.

    Raises InvalidRequestError: `unsupported_media_type`, `too_large`, `unknown_field`, `invalid_request`.
    """
    kind = media_type(request.headers.get("content-type", ""))
    if kind != "application/x-www-form-urlencoded":
        raise InvalidRequestError(
            f"a form arrives as application/x-www-form-urlencoded, not as {kind!r}",
            code="unsupported_media_type",
        )
    return _checked(_parse(await read_unidentified_body(request, max_bytes), max_fields), required, optional)


def _parse(body: bytes, max_fields: int) -> list[tuple[str, str]]:
    try:
        text = body.decode("ascii")
        return parse_qsl(
            text,
            keep_blank_values=True,
            strict_parsing=bool(text),
            errors="strict",
            max_num_fields=max_fields,
        )
    except ValueError as error:
        raise InvalidRequestError("the form is not urlencoded UTF-8: send it from our page again") from error


def _checked(
    pairs: list[tuple[str, str]], required: Collection[str], optional: Collection[str]
) -> dict[str, str]:
    fields: dict[str, str] = {}
    for name, value in pairs:
        if name not in required and name not in optional:
            raise InvalidRequestError(f"this form has no field {name!r}", code="unknown_field")
        if name in fields:
            raise InvalidRequestError(f"the field {name!r} came twice: send it once")
        fields[name] = value
    if missing := [name for name in required if name not in fields]:
        raise InvalidRequestError(f"the form lacks {missing[0]!r}: open the page again")
    return fields


def parse_positive_int(fields: dict[str, str], name: str) -> int:
    """A positive decimal number without sign, spaces or leading zeros."""
    value = fields[name]
    if not (value.isascii() and value.isdigit() and len(value) <= 9 and not value.startswith("0")):
        raise InvalidRequestError(f"{name!r} must be a whole number, not {value!r}")
    return int(value)
