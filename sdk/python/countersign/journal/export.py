"""The journal as plain values and exported documents, for people and other programs.

Rules: no secret argument is shown, and no control character that could affect a terminal. No key is needed: sealed
values are hidden, and so are secrets that an older journal holds in clear. Unreadable rows are marked as damaged; JSON
lists them separately from the transactions that can be replayed. The JSON document names its format and version. No CSV
cell begins as a formula. Agent text is not markup in the Markdown.

An export is a copy to read; it cannot be imported. Each transaction of the JSON document has a digest over all of its
members, so that a manual edit is noticed, and the head of its chain, for comparison with the journal. Neither is
signed: anyone who knows the format can edit it and compute a new digest.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, Final, Literal

import orjson

from countersign.contract import digests
from countersign.contract.admission import JSON
from countersign.contract.digests import canonicalize
from countersign.contract.errors import ContractError
from countersign.contract.pointers import pointer_tokens
from countersign.errors import JournalError
from countersign.journal import Journal, TransactionRecord
from countersign.journal.records import COMPENSATE_LANE, LIVE_LANE, STAGED_LANE
from countersign.journal.shown import HIDDEN, ShownEffect, UnreadableEffect

DAMAGED: Final = "damaged"
"""Shown in place of the state of an unreadable row."""

_LANES: Final = (STAGED_LANE, LIVE_LANE, COMPENSATE_LANE)
_OF_TXN: Final = (
    *("txn", "key", "agent", "state", "revision", "attempt", "unreported"),
    *("created", "changed", "note", "edits", "chain"),
)
_OF_EFFECT: Final = (
    *("lane", "seq", "tool", "state", "effect_id", "call_key"),
    *("args", "staged", "result", "error", "compensates", "settled"),
)


def escape_unprintable(text: str) -> str:
    """Escape unprintable characters: agent text must not move the reader's cursor."""
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


def summary(journal: Journal, record: TransactionRecord) -> dict[str, Any]:
    """One transaction in a line."""
    last = replace(record, staging=record.last_list)
    rows = [row for lane in (LIVE_LANE, STAGED_LANE) for row in journal.transactions.shown(last, lane)]
    return {
        "txn": record.txn,
        "key": record.run_key,
        "agent": record.agent,
        "state": record.display_state,
        "effects": ", ".join(f"{row.tool} {row.state.value}" for row in rows),
        "changed": _iso_time(record.updated_at),
        "note": record.note,
    }


def summary_of(journal: Journal, txn: str) -> dict[str, Any]:
    """The same by id. An unreadable one is marked as damaged and hides no other.

    Raises:
        JournalError: the journal is unavailable.
    """
    try:
        return summary(journal, journal.transactions.require(txn))
    except JournalError as error:
        key = journal.transactions.key_of(txn)
        message = dict.fromkeys(("agent", "effects", "changed"))
        return {"txn": txn, "key": key, "state": DAMAGED, "note": str(error), **message}


def describe_transaction(journal: Journal, record: TransactionRecord) -> dict[str, Any]:
    """One transaction with all its effects.

    Raises:
        JournalError: something in it cannot be read.
    """
    last = replace(record, staging=record.last_list)
    shown = [row for lane in _LANES for row in journal.transactions.shown(last, lane)]
    edits = _edits(journal, record.txn)
    return _described(journal, record, edits, [_effect(journal, row) for row in shown], [])


def description_of(journal: Journal, txn: str) -> dict[str, Any]:
    """The same by id, as far as it is readable. Damage is marked in place and listed in `unreadable`, a member that
    only damaged transactions have.

    Raises:
        JournalError: the journal is unavailable.
    """
    try:
        record = journal.transactions.require(txn)
    except JournalError as error:
        key = journal.transactions.key_of(txn)
        message = dict.fromkeys(_OF_TXN) | {"txn": txn, "key": key, "state": DAMAGED, "note": str(error)}
        return message | {"effects": [], "dropped": [], "unreadable": [str(error)]}
    unreadable: list[str] = []
    edits = None
    try:
        edits = _edits(journal, txn)
    except JournalError as error:
        unreadable.append(str(error))
    last = replace(record, staging=record.last_list)
    rows = [row for lane in _LANES for row in journal.transactions.shown_each(last, lane)]
    dropped = journal.transactions.dropped(record)
    unreadable += [
        f"{row.lane} {row.seq}: {row.why}" for row in (*rows, *dropped) if isinstance(row, UnreadableEffect)
    ]
    effects = [_effect_or_damage(journal, row) for row in rows]
    found = _described(journal, record, edits, effects, [_effect_or_damage(journal, row) for row in dropped])
    return found | {"unreadable": unreadable} if unreadable else found


def _effect_or_damage(journal: Journal, row: ShownEffect | UnreadableEffect) -> dict[str, Any]:
    if isinstance(row, UnreadableEffect):
        message = dict.fromkeys(_OF_EFFECT)
        return message | {"lane": row.lane, "seq": row.seq, "state": DAMAGED, "error": row.why}
    return _effect(journal, row)


def _described(
    journal: Journal,
    record: TransactionRecord,
    edits: str | None,
    effects: list[dict[str, Any]],
    dropped: list[dict[str, Any]],
) -> dict[str, Any]:
    return {
        "txn": record.txn,
        "key": record.run_key,
        "agent": record.agent,
        "state": record.display_state,
        "revision": record.rev,
        "attempt": record.attempt_id,
        "unreported": journal.outbox.count(record.txn),
        "created": _iso_time(record.created_at),
        "changed": _iso_time(record.updated_at),
        "note": record.note,
        "edits": edits,
        "chain": record.chain_hash,
        "effects": effects,
        "dropped": dropped,
    }


def _edits(journal: Journal, txn: str) -> str | None:
    """Who proposed the accepted edits, who accepted them, and why."""
    noted = journal.edits.noted(txn)
    edits = [one for one in noted if isinstance(one, dict)] if isinstance(noted, list) else []
    message = (
        f"{one.get('name')} ({one.get('person')}) proposed {one.get('proposal_id')}, {one.get('decided_by')} accepted "
        f"it for revision {one.get('became_rev')}: {one.get('reason')}"
        for one in edits
    )
    return "; ".join(message) or None


def _effect(journal: Journal, row: ShownEffect) -> dict[str, Any]:
    secrets = _secrets(journal, row)
    args = without_secrets(row.args, secrets)
    staged = None if row.staged is None else without_secrets(row.staged, secrets)
    return {
        "lane": row.lane,
        "seq": row.seq,
        "tool": row.tool,
        "state": row.state.value,
        "effect_id": row.effect_id,
        "call_key": row.call_key,
        "args": orjson.dumps(args).decode(),
        "staged": None if staged is None else orjson.dumps(staged).decode(),
        "result": _result(row, args),
        "error": row.error,
        "compensates": row.compensates,
        "settled": "; ".join(_settlement(one) for one in row.parsed_settlements) or None,
    }


def _settlement(one: Mapping[str, JSON]) -> str:
    """Who settled it, how, when and why."""
    answer = str(one.get("answer")).replace("_", " ")
    who = f"{one.get('name')} ({one.get('person')})"
    return f"{answer}, says {who} at {one.get('at')}: {one.get('reason')}"


def _result(row: ShownEffect, args: JSON) -> str | None:
    """The result of a call with secrets may quote them and is hidden, also in a journal from before seals."""
    if row.result_sealed or (row.result is not None and _hides(args)):
        return HIDDEN
    return None if row.result is None else row.result.decode()


def _hides(value: JSON) -> bool:
    if isinstance(value, dict | list):
        return any(map(_hides, value.values() if isinstance(value, dict) else value))
    return value == HIDDEN


def _secrets(journal: Journal, row: ShownEffect) -> tuple[str, ...] | None:
    """The pointers that the reviewed manifest declares secret. None if unknown, which hides everything. Secrets of a
    live call were sealed when it ran.
    """
    if row.tool_digest is None:
        return () if row.lane == LIVE_LANE else None
    try:
        return journal.manifests.get(row.tool, row.tool_digest).secret
    except (JournalError, ContractError):
        return None


def without_secrets(args: JSON, secrets: tuple[str, ...] | None) -> JSON:
    """Hide the values at these pointers, in place. None hides everything."""
    if secrets is None:
        return HIDDEN
    for pointer in secrets:
        _hide(args, pointer_tokens(pointer))
    return args


def _hide(value: JSON, tokens: tuple[str, ...]) -> None:
    *parents, last = tokens
    for token in parents:
        if isinstance(value, dict) and token in value:
            value = value[token]
        elif isinstance(value, list) and token.isdigit() and int(token) < len(value):
            value = value[int(token)]
        else:
            return
    if isinstance(value, dict) and last in value:
        value[last] = HIDDEN
    elif isinstance(value, list) and last.isdigit() and int(last) < len(value):
        value[int(last)] = HIDDEN


def _iso_time(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")


def json_text(value: Any, indent: int | None = None) -> str:
    """JSON in ASCII, so that agent text cannot affect a terminal."""
    return json.dumps(orjson.loads(orjson.dumps(value)), indent=indent)


ExportFormat = Literal["json", "csv", "md"]
FORMAT: Final = "countersign/journal-export/v1"

_TXN_COLUMNS: Final = ("txn", "key", "agent", "state", "revision", "attempt", "created", "changed", "note")
_EFFECT_COLUMNS: Final = (
    *("lane", "seq", "tool", "effect_state", "effect_id", "call_key"),
    *("args", "staged", "result", "error", "compensates", "settled"),
)
COLUMNS: Final = _TXN_COLUMNS + _EFFECT_COLUMNS
_IN_MARKDOWN: Final = ("lane", "seq", "tool", "state", "args", "result", "error", "settled")
_FORMULA: Final = ("=", "+", "-", "@", "\t", "\r", "\n")  # a spreadsheet would execute these


def render_export(form: ExportFormat, transactions: Sequence[Mapping[str, Any]], at: str) -> str:
    """Render transactions, as `describe` returns them, in one document."""
    if form == "json":
        sound = [
            {**one, "digest": transaction_digest(one)} for one in transactions if "unreadable" not in one
        ]
        document = {"format": FORMAT, "exported_at": at, "transactions": sound}
        if damaged := [one for one in transactions if "unreadable" in one]:
            document["damaged"] = damaged
        return json_text(document, indent=2) + "\n"
    return "".join(_table(transactions) if form == "csv" else _pages(transactions, at))


def transaction_digest(message: Mapping[str, Any]) -> str:
    """The digest of one transaction of a JSON document: SHA-256 over the format name and the canonical JSON of all
    members but `digest`.

    Raises:
        AdmissionError: it is no JSON.
    """
    members = {name: value for name, value in message.items() if name != "digest"}
    return digests.labelled_digest(f"{FORMAT}\n".encode(), canonicalize(members))


def _table(transactions: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """RFC 4180, every cell quoted; a line for each effect, or one for a transaction without effects. Dropped calls
    follow.
    """
    yield _row(COLUMNS)
    nothing: Mapping[str, Any] = {}
    for one in transactions:
        for effect in [*one["effects"], *one["dropped"]] or (nothing,):
            message = {**effect, "effect_state": effect.get("state")}
            yield _row(
                [*(one[name] for name in _TXN_COLUMNS), *(message.get(name) for name in _EFFECT_COLUMNS)]
            )


def _row(cells: Sequence[Any]) -> str:
    return ",".join(_cell(cell) for cell in cells) + "\r\n"


def _cell(value: Any) -> str:
    text = "" if value is None else escape_unprintable(str(value))
    if not isinstance(value, int) and text.startswith(_FORMULA):
        text = f"'{text}"
    return '"' + text.replace('"', '""') + '"'


def _pages(transactions: Sequence[Mapping[str, Any]], at: str) -> Iterator[str]:
    yield f"# Journal\n\nExported {at}: {len(transactions)} transactions.\n"
    for one in transactions:
        yield f"\n## {_code_span(one['key'])}\n\n"
        for name in _TXN_COLUMNS:
            if name != "key" and one[name] is not None:
                yield f"- {name}: {_code_span(one[name])}\n"
        if effects := [*one["effects"], *one["dropped"]]:
            yield f"\n| {' | '.join(_IN_MARKDOWN)} |\n|{' --- |' * len(_IN_MARKDOWN)}\n"
            yield from (_line([effect[name] for name in _IN_MARKDOWN]) for effect in effects)


def _line(cells: Sequence[Any]) -> str:
    return "| " + " | ".join(_code_span(cell).replace("|", r"\x7c") for cell in cells) + " |\n"


def _code_span(value: Any) -> str:
    """Text in a code span that it cannot end: no link, image or HTML, not even an autolinked address."""
    text = "" if value is None else escape_unprintable(str(value))
    if not text:
        return ""
    longest = max((len(run) for run in re.findall("`+", text)), default=0)
    fence = "`" * (longest + 1)
    return f"{fence} {text} {fence}" if longest else f"{fence}{text}{fence}"
