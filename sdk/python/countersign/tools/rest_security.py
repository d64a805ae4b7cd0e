"""Security of `RestApi`: values cannot change a path, and errors never repeat a credential.

Errors quote no address, which may contain a password or the token of a webhook. Header values that a response echoes
are hidden, whole or in part: no eight consecutive characters of them are shown, however the response quotes, truncates
or masks them, in any case, in base64, or escaped (once or twice) as in URLs, HTML and JSON. The user and password of
basic authentication are hidden as well. Up to seven characters may remain if a response splits the value. A value of up
to three characters does not count as a credential.
"""

from __future__ import annotations

import base64
import itertools
import re
from collections.abc import Callable, Iterator, Mapping
from html.entities import html5
from typing import Final, NamedTuple
from urllib.parse import SplitResult, quote, urlsplit

from countersign.errors import MisuseError, SettingsError
from countersign.settings import is_loopback

_NAME: Final = re.compile(r"\{([a-z_][a-z0-9_]*)\}")


def fill_path(path: str, values: Mapping[str, str | int]) -> str:
    """The path with each `{name}` replaced by its value, quoted.

    Raises:
        MisuseError: path and values do not match, or a value would change the path.
    """
    named = _NAME.findall(path)
    if not path.startswith("/") or path.startswith("//") or set(named) != set(values):
        raise MisuseError(
            f"the path {path!r} names {sorted(set(named))} and was given {sorted(values)}; it begins with / and each "
            "{name} in it has one value"
        )
    return _NAME.sub(lambda found: _segment(found[1], values[found[1]]), path)


def _segment(name: str, value: str | int) -> str:
    written = str(value)
    if written in {"", ".", ".."}:
        raise MisuseError(f"{name}={written!r} cannot be a path segment: it would change the path")
    return quote(written, safe="")


def require_base_url(url: str) -> str:
    """The base address of a service, without a trailing slash.

    Raises:
        SettingsError: it is invalid, or plain http to another machine.
    """
    parts = _parts(url)
    host = "" if parts is None else parts.hostname or ""
    if (
        parts is None
        or parts.scheme not in {"http", "https"}
        or not host
        or parts.query
        or parts.fragment
        or "@" in parts.netloc
    ):
        named = f"{parts.scheme}://{host}" if parts is not None and host else "what was given"
        raise SettingsError(
            f"{named} is not the address of a service; write it like https://bank.example/v1, and credentials as "
            "headers"
        )
    if parts.scheme == "http" and not is_loopback(host):
        raise SettingsError(
            f"http://{host} is plain http to another machine: anyone on the network could read and change what "
            "is sent"
        )
    return url.rstrip("/")


def _parts(url: str) -> SplitResult | None:
    """The parsed address, or None if it is invalid; the parser's message is dropped, because it would quote the
    address.
    """
    try:
        return urlsplit(url)
    except ValueError:
        return None


_MAX_EXCERPT: Final = 300  # characters of a response that people and agents may read
_SHORTEST: Final = 4  # the shortest value that counts as a credential; "1" is a version
_RUN: Final = 8  # consecutive characters that reveal too much
_HIDDEN: Final = "[hidden]"
_SENDABLE: Final = re.compile(r"(?:[!-~]+(?:[ \t]+[!-~]+)*)?")
"""Valid header values, RFC 9110 section 5.5. The HTTP client refuses others too, but quotes them."""

_ESCAPES: Final[Mapping[str, Callable[[str], str]]] = {
    r"%([0-9A-Fa-f]{2})": lambda digits: chr(int(digits, 16)),  # URLs and forms
    r"\\u([0-9A-Fa-f]{4})": lambda digits: chr(int(digits, 16)),  # JSON
    r"\\x([0-9A-Fa-f]{2})": lambda digits: chr(int(digits, 16)),  # programming languages
    r"\\([^ux])": lambda character: character,
    r"&#[xX]([0-9A-Fa-f]{1,5});": lambda digits: chr(int(digits, 16)),  # HTML
    r"&#([0-9]{1,6});": lambda digits: chr(int(digits)),
    r"&([A-Za-z]{2,31};)": lambda name: html5.get(name, f"&{name}"),
}
"""How a response may escape a character, and how to decode it."""
_ESCAPED: Final = re.compile("|".join([*_ESCAPES, "(.)"]), re.DOTALL)
_MEANINGS: Final[tuple[Callable[[str], str], ...]] = (*_ESCAPES.values(), lambda character: character)
_LONGEST_ESCAPE: Final = 8  # characters of `&equals;`
_DEEPEST: Final = 2  # escapes within escapes: a JSON text in a JSON text
_ENCODINGS: Final = ("utf-8", "latin-1")  # of user and password, RFC 7617 section 2.1
_URL_SAFE: Final = str.maketrans("-_", "+/")
_BASE64_OFFSETS: Final = {0: 0, 1: 2, 2: 3}
"""By number of bytes before a value: how many base64 characters depend on those bytes too."""


def find_invalid_header(headers: Mapping[str, str]) -> str | None:
    """The name of a header with an invalid value, such as the trailing line break of a file."""
    return next((name for name, value in headers.items() if not _SENDABLE.fullmatch(value)), None)


def redacted_excerpt(text: str, headers: Mapping[str, str]) -> str:
    """The beginning of a response's text, safe for errors, journals and reports."""
    given = [value for header in headers.values() for value in (header, *_read_out(header))]
    forms = {
        _folded(form) for value in given if len(value) >= _SHORTEST for form in (value, *_in_base64(value))
    }
    runs = {
        word[at : at + _RUN] for form in forms for word in form.split() for at in range(len(word) - _RUN + 1)
    }
    # A value that begins before the cut is matched completely.
    seen = text[: _MAX_EXCERPT + _LONGEST_ESCAPE * max(map(len, forms), default=0)]
    hides = bytearray(len(seen))
    for read in _readings(seen):
        for begin, end in _found(_folded(read.text), forms, runs):
            start, stop = read.begins[begin], read.ends[end - 1]
            hides[start:stop] = b"\1" * (stop - start)
    parts = itertools.groupby(zip(seen[:_MAX_EXCERPT], hides, strict=False), key=lambda one: one[1])
    return "".join(_HIDDEN if hidden else "".join(one for one, _ in part) for hidden, part in parts)


def _found(text: str, wholes: set[str], runs: set[str]) -> Iterator[tuple[int, int]]:
    """Positions of these strings in a text."""
    for whole in wholes:
        if len(whole) >= _SHORTEST:
            yield from (
                (one.start(), one.start() + len(whole))
                for one in re.finditer(f"(?={re.escape(whole)})", text)
            )
    yield from ((at, at + _RUN) for at in range(len(text) - _RUN + 1) if text[at : at + _RUN] in runs)


class _Reading(NamedTuple):
    """A decoded text, and where in the response each of its characters begins and ends."""

    text: str
    begins: list[int]
    ends: list[int]


def _readings(seen: str) -> Iterator[_Reading]:
    """A response as it is, and with its escapes decoded."""
    places = range(len(seen))
    reading = _Reading(seen, [*places], [at + 1 for at in places])
    yield reading
    for _ in range(_DEEPEST):
        reading = _unescaped(reading)
        yield reading


def _unescaped(reading: _Reading) -> _Reading:
    text, begins, ends = list[str](), list[int](), list[int]()
    for one in _ESCAPED.finditer(reading.text):
        which = one.lastindex or 1
        means = _MEANINGS[which - 1](one[which])
        text.append(means)
        begins += [reading.begins[one.start()]] * len(means)
        ends += [reading.ends[one.end() - 1]] * len(means)
    return _Reading("".join(text), begins, ends)


def _folded(text: str) -> str:
    """Lower case, preserving positions."""
    return "".join(small if len(small := one.lower()) == 1 else one for one in text)


def _in_base64(value: str) -> Iterator[str]:
    """The base64 forms of a value at each byte offset, without characters that depend on neighbouring bytes."""
    for word in value.split():
        for before, lead in _BASE64_OFFSETS.items():
            packed = b"\0" * before + word.encode()
            for encode in (base64.b64encode, base64.urlsafe_b64encode):
                yield encode(packed).decode().rstrip("=")[lead:]


def _read_out(value: str) -> Iterator[str]:
    """The user and the password of a basic authentication value (RFC 7617), padded or not."""
    scheme, _, packed = value.partition(" ")
    if scheme.lower() != "basic":
        return
    bare = packed.strip().rstrip("=").translate(_URL_SAFE)
    try:
        raw = base64.b64decode(bare + "=" * (-len(bare) % 4), validate=True)
    except ValueError:
        return
    for encoding in _ENCODINGS:
        yield from raw.decode(encoding, "replace").split(":", 1)
