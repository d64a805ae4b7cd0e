"""The one place where text becomes HTML: Jinja with autoescape, strict about what is missing.

Rules kept here: no template marks a value as safe; `Markup` is made only in this file, of escaped pieces;
an undefined name is an error, never an empty string; only the icons a page used are in the page.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from functools import cache, partial
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

from policy_service.channels.presentation import formatting
from policy_service.channels.presentation.marked_text import Marked, Span, mark, plain_text, typed_json

_TOKEN = re.compile(
    r"""
    (?P<c> //[^\n]* )
  | (?P<s> "(?:[^"\\\n]|\\.)*" )
  | (?P<a> @[A-Za-z_]\w* )
  | (?P<d> (?<!\w)\d+(?!\w) )
  | (?P<k> \b(?:permit|forbid|when|unless|if|then|else|in|has|like|is|true|false)\b )
    """,
    re.VERBOSE,
)


def cedar_tokens(text: str) -> Iterator[tuple[str, str]]:
    """(css class or "", text), from the first character to the last."""
    end = 0
    for match in _TOKEN.finditer(text):
        if match.start() > end:
            yield "", text[end : match.start()]
        yield match.lastgroup or "", match.group()
        end = match.end()
    if end < len(text):
        yield "", text[end:]


_SYMBOL = re.compile(r'<symbol id="(?:i-)?([a-z-]+)".*?</symbol>', re.DOTALL)
_HIDDEN = Markup(
    '<span class="hid" title="{name}">{code}<span class="sr"> hidden character: {name}</span></span>'
)
_HIDDEN_SHORT = Markup('<span class="hid" title="{name}">{code}</span>')
_SUSPECT = Markup('<span class="sus" title="{code} {name}">{text}</span>')
_CEDAR = Markup('<span class="{kind}">{text}</span>')
_USE = Markup('<svg class="icon" aria-hidden="true"><use href="#{id}"/></svg>')


def shown(marked: Marked, *, terse: bool = False) -> Markup:
    """Marked text as HTML. `terse` leaves out the words for screen readers, for bytes in bulk."""
    return Markup("").join(_shown_span(span, terse) for span in marked.spans)


def _shown_span(span: Span, terse: bool) -> Markup:
    if span.kind == "plain":
        return escape(span.text)
    if span.kind == "suspect":
        return _SUSPECT.format(code=span.code, name=span.name, text=span.text)
    times = f" × {span.count:,}" if span.count > 1 else ""
    return (_HIDDEN_SHORT if terse else _HIDDEN).format(name=span.name + times, code=span.code + times)


def show(text: object, *, address: bool = False) -> Markup:
    """A short text in the middle of others, marked."""
    return shown(mark(str(text), address=address))


def cedar(text: str) -> Markup:
    """Cedar text with its words coloured, marked like everything else that is not ours."""
    pieces = (
        (kind, shown(mark(piece, block=True, edges=False), terse=True)) for kind, piece in cedar_tokens(text)
    )
    return Markup("").join(_CEDAR.format(kind=kind, text=html) if kind else html for kind, html in pieces)


class Icons:
    """The icons of one page: `icons("check")` draws one, `icons.sprite()` at the end brings them along."""

    def __init__(self, symbols: Mapping[str, Markup]) -> None:
        self._symbols = symbols
        self._used: dict[str, None] = {}

    def __call__(self, name: str) -> Markup:
        self._used[name] = None
        return _USE.format(id=f"i-{name}")

    def also(self, *names: str) -> str:
        """Bring icons that only a later fragment will use."""
        self._used.update(dict.fromkeys(names))
        return ""

    def sprite(self) -> Markup:
        return Markup("").join(self._symbols[name] for name in self._used)


class Templates:
    """The templates of the web folder."""

    def __init__(self, folder: Path) -> None:
        self._symbols = _load_symbols(folder / "icons.svg")
        self._env = Environment(
            loader=FileSystemLoader(folder),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
            auto_reload=False,
        )
        self._env.filters.update(_FILTERS)

    def render(self, name: str, *, now: datetime, **context: Any) -> str:
        """Raises jinja2.UndefinedError when the template names something the context lacks."""
        return self._env.get_template(name).render(
            now=now, icons=Icons(self._symbols), clock=partial(formatting.clock_time, now=now), **context
        )


@cache
def templates_of(folder: Path) -> Templates:
    """The templates of a folder, read and compiled once for the process."""
    return Templates(folder)


def _load_symbols(path: Path) -> dict[str, Markup]:
    """Our own drawings, from our own file."""
    found = {match.group(1): match.group() for match in _SYMBOL.finditer(path.read_text(encoding="utf-8"))}
    return {name: Markup(symbol) for name, symbol in found.items()}  # noqa: S704 -- ships with the service


_FILTERS: dict[str, Callable[..., Any]] = {
    "show": show,
    "shown": shown,
    "plain": plain_text,
    "typed": typed_json,
    "cedar": cedar,
    "counted": formatting.pluralize,
    "either": formatting.join_or,
    "digest": formatting.short_digest,
    "sentence": formatting.as_sentence,
    "initials": formatting.initials,
    "iso": formatting.iso,
    "age": formatting.age_words,
}
