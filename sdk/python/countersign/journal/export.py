"""The journal as plain values and as exported documents, for people and other programs.

Rules: no secret argument is shown, and no control character that could rewrite a terminal. It takes no key: what is
sealed is hidden, and what an older journal holds in clear is hidden all the same. What cannot be read is named as
damaged, in JSON apart from the transactions that can be replayed; the JSON document names its format and version; a
cell of the CSV never begins as a formula; what an agent wrote is no markup in the Markdown.

An export is a copy to read: nothing is taken back from it. Each transaction of the JSON document has a digest over all
that is said of it, so that an edit by hand is noticed, and the head of its chain, by which it can be compared with the
journal. Neither is signed: whoever knows this page can edit it and make the digest anew.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, Final, Literal

import orjson

from countersign.contract import names
from countersign.contract.admission import JSON
from countersign.contract.canonical import canonicalize
from countersign.contract.errors import ContractError
from countersign.contract.pointers import pointer_tokens
from countersign.errors import JournalError
from countersign.journal import Journal, TransactionRecord
from countersign.journal.queries import COMPENSATE_LANE, LIVE_LANE, STAGED_LANE
from countersign.journal.records import ShownEffect, UnreadableEffect
from countersign.journal.sealing import HIDDEN

DAMAGED: Final = "damaged"
"""In place of a state: of what cannot be read."""

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
    """Text with everything that is not printable written out; an agent must not move the reader's cursor."""
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
    """The same by its id. One that cannot be read is named as damaged and hides no other.

    Raises:
        JournalError: the journal is away.
    """
    try:
        return summary(journal, journal.transactions.require(txn))
    except JournalError as error:
        key = journal.transactions.key_of(txn)
        told = dict.fromkeys(("agent", "effects", "changed"))
        return {"txn": txn, "key": key, "state": DAMAGED, "note": str(error), **told}


def describe_transaction(journal: Journal, record: TransactionRecord) -> dict[str, Any]:
    """One transaction with its effects, all of it.

    Raises:
        JournalError: something of it cannot be read.
    """
    last = replace(record, staging=record.last_list)
    shown = [row for lane in _LANES for row in journal.transactions.shown(last, lane)]
    edits = _edits(journal, record.txn)
    return _described(journal, record, edits, [_effect(journal, row) for row in shown], [])


def description_of(journal: Journal, txn: str) -> dict[str, Any]:
    """The same by its id, as far as it can be read. What cannot is named as damaged where it stands, and in
    `unreadable`, which nothing else has.

    Raises:
        JournalError: the journal is away.
    """
    try:
        record = journal.transactions.require(txn)
    except JournalError as error:
        key = journal.transactions.key_of(txn)
        told = dict.fromkeys(_OF_TXN) | {"txn": txn, "key": key, "state": DAMAGED, "note": str(error)}
        return told | {"effects": [], "dropped": [], "unreadable": [str(error)]}
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
        told = dict.fromkeys(_OF_EFFECT)
        return told | {"lane": row.lane, "seq": row.seq, "state": DAMAGED, "error": row.why}
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
    """Who changed arguments that are in force, who accepted that, and why."""
    noted = journal.edits.noted(txn)
    edits = [one for one in noted if isinstance(one, dict)] if isinstance(noted, list) else []
    told = (
        f"{one.get('name')} ({one.get('person')}) proposed {one.get('proposal_id')}, {one.get('decided_by')} accepted "
        f"it for revision {one.get('became_rev')}: {one.get('reason')}"
        for one in edits
    )
    return "; ".join(told) or None


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
        "settled": "; ".join(_settlement(one) for one in row.said) or None,
    }


def _settlement(one: Mapping[str, JSON]) -> str:
    """Who settled it, as what, when and why."""
    answer = str(one.get("answer")).replace("_", " ")
    who = f"{one.get('name')} ({one.get('person')})"
    return f"{answer}, says {who} at {one.get('at')}: {one.get('reason')}"


def _result(row: ShownEffect, args: JSON) -> str | None:
    """That of a call with a secret may repeat it, and is hidden; also where a journal from before seals holds both."""
    if row.result_sealed or (row.result is not None and _hides(args)):
        return HIDDEN
    return None if row.result is None else row.result.decode()


def _hides(value: JSON) -> bool:
    if isinstance(value, dict | list):
        return any(map(_hides, value.values() if isinstance(value, dict) else value))
    return value == HIDDEN


def _secrets(journal: Journal, row: ShownEffect) -> tuple[str, ...] | None:
    """The pointers a reviewed manifest calls secret; None while nobody has said, which hides everything. What a live
    call ran with is sealed where its code or its manifest called it secret.
    """
    if row.tool_digest is None:
        return () if row.lane == LIVE_LANE else None
    try:
        return journal.manifests.get(row.tool, row.tool_digest).secret
    except (JournalError, ContractError):
        return None


def without_secrets(args: JSON, secrets: tuple[str, ...] | None) -> JSON:
    """The arguments, changed in place, with what these pointers name hidden; None hides everything."""
    if secrets is None:
        return HIDDEN
    for pointer in secrets:
        _hide(args, pointer_tokens(pointer))
    return args


def _hide(value: JSON, tokens: tuple[str, ...]) -> None:
    *way, last = tokens
    for token in way:
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
    """JSON in ASCII: what an agent wrote moves no cursor of whoever reads it on a terminal."""
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
_FORMULA: Final = ("=", "+", "-", "@", "\t", "\r", "\n")  # what a spreadsheet would run


def render_export(form: ExportFormat, transactions: Sequence[Mapping[str, Any]], at: str) -> str:
    """These transactions, as `describe` returns them, in one text."""
    if form == "json":
        sound = [
            {**one, "digest": transaction_digest(one)} for one in transactions if "unreadable" not in one
        ]
        document = {"format": FORMAT, "exported_at": at, "transactions": sound}
        if damaged := [one for one in transactions if "unreadable" in one]:
            document["damaged"] = damaged
        return json_text(document, indent=2) + "\n"
    return "".join(_table(transactions) if form == "csv" else _pages(transactions, at))


def transaction_digest(told: Mapping[str, Any]) -> str:
    """The digest of one transaction of a JSON document: SHA-256 over the name of the form and the canonical JSON of all
    its members but `digest`.

    Raises:
        AdmissionError: it holds what is no JSON.
    """
    said = {name: value for name, value in told.items() if name != "digest"}
    return names.labelled_digest(f"{FORMAT}\n".encode(), canonicalize(said))


def _table(transactions: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """RFC 4180, every cell quoted; a line for each effect, or one for a transaction that has none. Those that its
    list does not hold follow.
    """
    yield _row(COLUMNS)
    nothing: Mapping[str, Any] = {}
    for one in transactions:
        for effect in [*one["effects"], *one["dropped"]] or (nothing,):
            told = {**effect, "effect_state": effect.get("state")}
            yield _row([*(one[name] for name in _TXN_COLUMNS), *(told.get(name) for name in _EFFECT_COLUMNS)])


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
    """Text in a code span that it cannot end: no link, no image, no HTML, not even the address of a page."""
    text = "" if value is None else escape_unprintable(str(value))
    if not text:
        return ""
    longest = max((len(run) for run in re.findall("`+", text)), default=0)
    fence = "`" * (longest + 1)
    return f"{fence} {text} {fence}" if longest else f"{fence}{text}{fence}"
