"""Search for a secret, of which no byte may be found again in any encoding, and the places to search."""

import base64
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from urllib.parse import quote

import psycopg

from countersign.journal.location import JournalLocation, JournalUrl

SECRET = 'Zoë "4111-9f1c7ab3" Öztürk'
"""Its letters, quotes and digits read differently in JSON, in a URL, in an escaped text."""

CORE = "4111-9f1c7ab3"
"""What no writer would write differently; enough of it to harm."""


def dresses(text: str) -> Iterator[tuple[str, bytes]]:
    """Every way in which a text is usually written down."""
    raw = text.encode()
    yield "plain", raw
    yield "hex", raw.hex().encode()
    yield "HEX", raw.hex().upper().encode()
    yield "JSON", json.dumps(text)[1:-1].encode()
    yield "JSON in JSON", json.dumps(json.dumps(text)[1:-1])[1:-1].encode()
    yield "JSON, UTF-8", json.dumps(text, ensure_ascii=False)[1:-1].encode()
    yield "escaped", text.encode("unicode_escape")
    yield "URL", quote(text, safe="").encode()
    yield "UTF-16", text.encode("utf-16-le")
    for before in range(3):
        whole = base64.b64encode(b"\0" * before + raw)
        inner = whole[
            (before * 8 + 5) // 6 : len(whole) - 4
        ]  # what does not depend on the bytes before and after
        yield f"base64 at {before}", inner
        yield f"base64url at {before}", inner.translate(bytes.maketrans(b"+/", b"-_"))


def found_in(places: Mapping[str, bytes]) -> list[str]:
    """Where the secret occurs, and in which encoding."""
    return [
        f"{name}: {dress} of {part!r}: ...{content[max(0, at - 60) : at + 60]!r}..."
        for name, content in places.items()
        for part in (SECRET, CORE)
        for dress, form in dresses(part)
        if (at := content.find(form)) >= 0
    ]


def everything_of(place: JournalLocation) -> dict[str, bytes]:
    """Every byte of a journal: all of SQLite's files, or every column of every row."""
    if isinstance(place, Path):
        neighbor = sorted(place.parent.glob(f"{place.name}*"))
        assert len(neighbor) > 1, "the journal is closed, so nothing of its write-ahead log is looked at"
        return {file.name: file.read_bytes() for file in neighbor}
    return dict(_columns(place))


def _columns(place: JournalUrl) -> Iterator[tuple[str, bytes]]:
    schema = place.secret.rpartition("%3D")[2]
    with psycopg.connect(place.secret, autocommit=True) as connection:
        tables = connection.execute(
            "SELECT table_name FROM information_schema.tables WHERE table_schema = %s", (schema,)
        ).fetchall()
        assert len(tables) > 8
        for (table,) in tables:
            rows = connection.execute(f"SELECT * FROM {table}".encode()).fetchall()
            values = [
                value if isinstance(value, bytes) else str(value).encode() for row in rows for value in row
            ]
            yield table, b"\n".join(values)
