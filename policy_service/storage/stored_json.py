"""Read JSON that this service stored: it was admitted once, and every limit applied then."""

from __future__ import annotations

import json

from countersign.contract import JSON


def read_stored(raw: bytes) -> JSON:
    """The value of canonical bytes from our own tables.

    No limit of admission applies: an audit body or a view is made here, and may hold more than one request could.
    """
    value: JSON = json.loads(raw)
    return value
