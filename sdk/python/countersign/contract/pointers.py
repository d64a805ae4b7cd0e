"""JSON pointers (RFC 6901): how a manifest refers to the args of a call.

Also sentence templates: literal text and `{arg}` or `{/pointer}`, where `{{` and `}}` are literal braces. A pointer
that matches nothing is an error, never a silent null. Templates are only parsed here, never filled in: each surface
escapes the values it shows.
"""

import re
from dataclasses import dataclass
from typing import Final

from .admission import JSON
from .errors import ManifestError, PointerError

_POINTER: Final = re.compile(r"(?:/(?:[^~/]|~[01])*)*\Z")
_INDEX: Final = re.compile(r"(?:0|[1-9][0-9]{0,8})\Z")


def require_pointer(pointer: str) -> str:
    """Return the pointer if it is well formed (RFC 6901 section 3).

    Raises:
        PointerError: `bad_pointer`.
    """
    if not _POINTER.match(pointer):
        raise PointerError("bad_pointer", f"{pointer!r} is not a JSON pointer; write it like '/payment/id'")
    return pointer


def pointer_tokens(pointer: str) -> tuple[str, ...]:
    """Split a pointer into its unescaped reference tokens; `''` has none (RFC 6901 section 4).

    Raises:
        PointerError: `bad_pointer`.
    """
    escaped = require_pointer(pointer).split("/")[1:]
    return tuple(token.replace("~1", "/").replace("~0", "~") for token in escaped)


def pointer_to(name: str) -> str:
    """The pointer to a top-level member of that name (RFC 6901 section 3)."""
    return "/" + name.replace("~", "~0").replace("/", "~1")


def resolve_pointer(value: JSON, pointer: str) -> JSON:
    """Return the value at the pointer.

    Raises:
        PointerError: `bad_pointer`; `pointer_missing` if nothing is there.
    """
    for token in pointer_tokens(pointer):
        value = _step(value, token, pointer)
    return value


def _step(value: JSON, token: str, pointer: str) -> JSON:
    if isinstance(value, dict) and token in value:
        return value[token]
    if isinstance(value, list) and _INDEX.match(token) and int(token) < len(value):
        return value[int(token)]
    raise PointerError("pointer_missing", f"{pointer!r} names nothing here: no {token!r}")


_PIECE: Final = re.compile(r"\{\{|\}\}|\{([^{}]+)\}|[^{}]+|.", re.DOTALL)


@dataclass(frozen=True, slots=True)
class SentencePart:
    """Literal `text` (then `pointer` is None), or the value that `pointer` names in the args."""

    text: str
    pointer: str | None = None


def split_sentence(template: str) -> tuple[SentencePart, ...]:
    """Parse a sentence template into parts.

    Raises:
        ManifestError: `bad_sentence` for an unmatched brace.
        PointerError: `bad_pointer`.
    """
    parts: list[SentencePart] = []
    for match in _PIECE.finditer(template):
        piece, field = match.group(), match.group(1)
        if field is not None:
            parts.append(SentencePart(field, _pointer_of(field)))
        elif piece in ("{", "}"):
            raise ManifestError(
                "bad_sentence", f"a lone {piece!r} in {template!r}; write {piece * 2!r} for a brace"
            )
        else:
            _append_text(parts, piece[0] if piece in ("{{", "}}") else piece)
    return tuple(parts)


def _append_text(parts: list[SentencePart], text: str) -> None:
    if parts and parts[-1].pointer is None:
        parts[-1] = SentencePart(parts[-1].text + text)
    else:
        parts.append(SentencePart(text))


def _pointer_of(field: str) -> str:
    """A plain name is the pointer to that top-level arg."""
    if field.startswith("/"):
        return require_pointer(field)
    return pointer_to(field)
