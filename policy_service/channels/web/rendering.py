"""Rendering of templates: Jinja with autoescape and strict undefined names. Only this module makes HTML from
text.

No template marks a value as safe. `Markup` is made only here, from escaped pieces. Only the icons a page uses
are in it.
"""

import hashlib
import re
from base64 import b64encode
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import cache, partial
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

from policy_service.channels.presentation import formatting
from policy_service.channels.presentation.marked_text import Marked, Span, mark, plain_text, typed_json

_MEDIA_TYPES = {
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
_PACKAGED = Path(__file__).parent / "assets"  # the repository's `web` folder in a wheel
_CHECKED_OUT = Path(__file__).parents[3] / "web"


@dataclass(frozen=True, slots=True)
class Asset:
    """One file with its digest."""

    name: str
    body: bytes
    media_type: str
    digest: str
    integrity: str

    @property
    def url(self) -> str:
        return f"/static/{self.digest}/{self.name}"


def web_folder() -> Path:
    """The folder with `templates` and `static`."""
    for folder in (_PACKAGED, _CHECKED_OUT):
        if (folder / "templates").is_dir():
            return folder
    raise FileNotFoundError(
        f"no web templates in {str(_PACKAGED)!r} or {str(_CHECKED_OUT)!r}: reinstall the service"
    )


def load_assets(folder: Path) -> Mapping[str, Asset]:
    """Every file of a known type below `folder`, by relative name."""
    files = (path for path in sorted(folder.rglob("*")) if path.suffix in _MEDIA_TYPES)
    return {asset.name: asset for asset in (_load(path, folder) for path in files)}


def _load(path: Path, folder: Path) -> Asset:
    body = path.read_bytes()
    digest = hashlib.sha256(body)
    return Asset(
        name=path.relative_to(folder).as_posix(),
        body=body,
        media_type=_MEDIA_TYPES[path.suffix],
        digest=digest.hexdigest()[:16],
        integrity="sha256-" + b64encode(digest.digest()).decode("ascii"),
    )


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
    """(css class or "", text), covering the whole text."""
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
    """Marked text as HTML. `terse` omits the text for screen readers, for large amounts of bytes."""
    return Markup("").join(_shown_span(span, terse) for span in marked.spans)


def _shown_span(span: Span, terse: bool) -> Markup:
    if span.kind == "plain":
        return escape(span.text)
    if span.kind == "suspect":
        return _SUSPECT.format(code=span.code, name=span.name, text=span.text)
    times = f" × {span.count:,}" if span.count > 1 else ""
    return (_HIDDEN_SHORT if terse else _HIDDEN).format(name=span.name + times, code=span.code + times)


def show(text: object, *, address: bool = False) -> Markup:
    """A short inline text, marked."""
    return shown(mark(str(text), address=address))


def cedar(text: str) -> Markup:
    """Cedar source with syntax colours, marked like other untrusted text."""
    pieces = (
        (kind, shown(mark(piece, block=True, edges=False), terse=True)) for kind, piece in cedar_tokens(text)
    )
    return Markup("").join(_CEDAR.format(kind=kind, text=html) if kind else html for kind, html in pieces)


class Icons:
    """The icons of one page: `icons("check")` draws one, `icons.sprite()` at the end defines those used."""

    def __init__(self, symbols: Mapping[str, Markup]) -> None:
        self._symbols = symbols
        self._used: dict[str, None] = {}

    def __call__(self, name: str) -> Markup:
        self._used[name] = None
        return _USE.format(id=f"i-{name}")

    def also(self, *names: str) -> str:
        """Include icons that a later fragment will use."""
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
