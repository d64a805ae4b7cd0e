"""The sentence template of a manifest: literal text and `{arg}` or `{/pointer}`; `{{` and `}}` are literal braces.

Templates are only parsed here, never filled in: each surface escapes the values it shows.
"""

import re
from dataclasses import dataclass
from typing import Final

from .errors import ManifestError
from .pointers import pointer_to, require_pointer

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
