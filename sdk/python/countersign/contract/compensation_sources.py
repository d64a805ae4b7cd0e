"""The three sources of a compensation's arguments: `args:/pointer`, `result:/pointer` and `const:<json>`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from .admission import JSON, load
from .errors import AdmissionError, PointerError
from .pointers import require_pointer, resolve_pointer

_SOURCE: Final = re.compile(r"(args|result|const):(.*)\Z", re.DOTALL)


def require_source(source: str) -> str:
    """Return a compensation source if it is well formed.

    Raises:
        PointerError: `bad_source`, `bad_pointer`.
    """
    kind, rest = _split_source(source)
    if kind == "const":
        _constant(source, rest)
    else:
        require_pointer(rest)
    return source


def reads_result(mapping: Mapping[str, str]) -> bool:
    """Whether a compensation takes any argument from the reported result of the forward call."""
    return any(_split_source(source)[0] == "result" for source in mapping.values())


def compensation_args(mapping: Mapping[str, str], *, args: JSON, result: JSON) -> dict[str, JSON]:
    """Build the args of a compensating call from the forward args and the reported result (design section 6).

    Raises:
        PointerError: `bad_source`, `bad_pointer`; `pointer_missing` if the forward call or its result lacks a
        value.
    """
    return {name: _from_source(source, args, result) for name, source in mapping.items()}


def _from_source(source: str, args: JSON, result: JSON) -> JSON:
    kind, rest = _split_source(source)
    if kind == "const":
        return _constant(source, rest)
    return resolve_pointer(args if kind == "args" else result, rest)


def _split_source(source: str) -> tuple[str, str]:
    match = _SOURCE.match(source)
    if match is None:
        message = f"{source!r} is not a source; write 'args:/pointer', 'result:/pointer' or 'const:<json>'"
        raise PointerError("bad_source", message)
    return match.group(1), match.group(2)


def _constant(source: str, text: str) -> JSON:
    try:
        return load(text.encode("utf-8", "surrogatepass"))
    except AdmissionError as error:
        raise PointerError("bad_source", f"{source!r} does not hold JSON after 'const:': {error}") from error
