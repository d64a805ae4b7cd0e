"""Search the audit log, and export it as JSON lines or CSV.

In CSV every cell is quoted, and a cell that a spreadsheet would take for a formula starts with an apostrophe.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Final
from urllib.parse import urlencode

from fastapi import Request, Response

from policy_service.channels.web.page_routes import PageRoutes
from policy_service.channels.web.pages import Pages, PageSession
from policy_service.errors import InvalidRequestError, NotFoundError
from policy_service.queries.audit_log import LogLine, LogSearch, export_line, export_lines, search_log

_PAGE_OF_LINES: Final = 50
_TEXTS: Final = ("agent", "about", "kind", "person")
_MAX_CHARS: Final = 500
_FORMULA: Final = ("=", "+", "-", "@", "\t", "\r", "\n")
_COLUMNS: Final = ("index", "at", "kind", "actor", "agent", "txn", "effect_id", "record")
_MEDIA: Final = {"jsonl": "application/jsonl", "csv": "text/csv; charset=utf-8"}


routes = PageRoutes()


@routes.page("/audit")
async def audit(pages: Pages, request: Request, session: PageSession) -> Response:
    asked = _read_search(request.query_params)
    found = await search_log(
        pages.ctx, parse_search(asked), request.query_params.get("cursor"), _PAGE_OF_LINES
    )
    return await pages.draw(
        request,
        "audit.html",
        session=session,
        asked=asked,
        query=urlencode({name: value for name, value in asked.items() if value}),
        found=found,
    )


@routes.get("/audit/export.{form}", touch=True)
async def export_log(pages: Pages, request: Request, session: PageSession, form: str) -> Response:
    if form not in _MEDIA:
        raise NotFoundError(f"the log is exported as {' or '.join(_MEDIA)}, not as {form!r}")
    lines = export_lines(pages.ctx, parse_search(_read_search(request.query_params)))
    body = csv_lines(lines) if form == "csv" else json_lines(lines)
    name = f"countersign-log-{pages.now():%Y%m%dT%H%M%SZ}.{form}"
    headers = pages.headers() | {"Content-Disposition": f'attachment; filename="{name}"'}
    return pages.exports.answer(session.voter.key, body, headers, _MEDIA[form])


def _read_search(query: Mapping[str, str]) -> dict[str, str]:
    """The search as it was typed."""
    asked = {name: query.get(name, "").strip() for name in (*_TEXTS, "since", "until")}
    if any(len(value) > _MAX_CHARS for value in asked.values()):
        raise InvalidRequestError(f"a search field has at most {_MAX_CHARS} characters")
    return asked


def parse_search(asked: Mapping[str, str]) -> LogSearch:
    """The search of an address.

    Raises:
        InvalidRequestError: a time is invalid.
    """
    texts = {name: asked[name] for name in _TEXTS}
    return LogSearch(**texts, since=_moment(asked["since"]), until=_moment(asked["until"], ends=True))


def _moment(text: str, *, ends: bool = False) -> datetime | None:
    """A time of a browser's field, in UTC; a date that ends a search includes the whole day."""
    if not text:
        return None
    try:
        moment = datetime.fromisoformat(text)
        moment = moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)
        return moment + timedelta(days=1) if ends and len(text) == len("2026-01-31") else moment
    except (ValueError, OverflowError) as error:
        raise InvalidRequestError(f"{text!r} is not a time; write 2026-01-31 or 2026-01-31T17:00") from error


async def json_lines(lines: AsyncIterator[LogLine]) -> AsyncIterator[bytes]:
    """One line of canonical JSON per row: its index and the indexed record."""
    async for line in lines:
        yield export_line(line) + b"\n"


async def csv_lines(lines: AsyncIterator[LogLine]) -> AsyncIterator[bytes]:
    """RFC 4180, every cell quoted."""
    yield _row(_COLUMNS)
    async for line in lines:
        at = f"{line.at:%Y-%m-%dT%H:%M:%S.%fZ}"
        about = (line.agent, line.txn, line.effect_id, line.record.decode())
        yield _row((line.index, at, line.kind, line.actor, *about))


def _row(cells: tuple[Any, ...]) -> bytes:
    return (",".join(_cell(cell) for cell in cells) + "\r\n").encode()


def _cell(value: Any) -> str:
    text = "" if value is None else str(value)
    if text.startswith(_FORMULA):
        text = f"'{text}"
    return '"' + text.replace('"', '""') + '"'
