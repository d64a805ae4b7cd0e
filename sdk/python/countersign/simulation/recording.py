"""The recording of a step: read from a journal, or from a document that `countersign journal export` wrote.

Rules: a journal is only read. A transaction with a broken hash chain is refused, because a divergence from it would
mean nothing. An export that was edited is refused by its digests, which the editor may recompute; an old export without
digests is accepted with a warning. Secrets are hidden in both; calls are compared by call key, which binds them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from countersign.contract import digests
from countersign.contract.admission import Limits, load
from countersign.contract.errors import AdmissionError
from countersign.errors import JournalError, MisuseError
from countersign.journal import Journal, TransactionRecord
from countersign.journal.export import FORMAT, describe_transaction, transaction_digest
from countersign.journal.location import JournalLocation
from countersign.journal.records import LIVE_LANE, STAGED_LANE
from countersign.journal.shown import HIDDEN
from countersign.journal.verification import verify

_EXPORT_LIMITS: Final = Limits(max_bytes=256 * 1024 * 1024, max_depth=16, max_nodes=5_000_000)
_SHOWN: Final = "`countersign journal list` shows what there is"
_WRITE_ONE: Final = "write one with `countersign journal export --format json`"


class _Read(BaseModel):
    """Read strictly; members that a replay does not need are ignored."""

    model_config = ConfigDict(strict=True, frozen=True)


class RecordedCall(_Read):
    """One recorded call; `args` and `result` are for people, secrets hidden. `opened` is a hidden result, unsealed
    with the journal's key; an export has none.
    """

    lane: Literal["staged", "live", "compensate"]
    seq: int
    tool: str
    effect_id: str
    call_key: str
    args: str
    staged: str | None = None  # the staged arguments, if an accepted edit changed them
    state: str
    result: str | None
    error: str | None
    opened: str | None = Field(default=None, repr=False)

    @property
    def recorded_args(self) -> str:
        """The arguments of the body's own call."""
        return self.staged or self.args

    @property
    def known_result(self) -> str | None:
        """The result, even a hidden one; None if it is not available."""
        return self.opened if self.result == HIDDEN else self.result


class RecordedTransaction(_Read):
    """One recorded transaction."""

    txn: str
    key: str
    agent: str
    state: str
    attempt: str | None  # None if its list was never in force
    effects: tuple[RecordedCall, ...]
    digest: str | None = None
    vouched_for: bool = True  # older exports have no digest

    @property
    def independent(self) -> bool:
        """Whether it was one effect of `independent=True`: its id is not derived from the run key alone."""
        return self.txn != digests.txn_id(agent=self.agent, run_key=self.key)


class _Export(_Read):
    format: str
    transactions: tuple[RecordedTransaction, ...]


class _SignedExport(_Read):
    """The complete document, which its digests cover."""

    transactions: tuple[dict[str, Any], ...]


class RecordedRun(_Read):
    """One step: a transaction, or the transactions of its independent effects."""

    agent: str
    key: str
    independent: bool
    transactions: tuple[RecordedTransaction, ...]

    def calls(self) -> Iterator[RecordedCall]:
        """Every call, including compensations."""
        for one in self.transactions:
            yield from one.effects

    @property
    def vouched_for(self) -> bool:
        """Whether digests or chains show that it was not edited."""
        return all(one.vouched_for for one in self.transactions)

    @property
    def hides(self) -> bool:
        """Whether one of its calls has secrets."""
        return any(call.opened is not None or f'"{HIDDEN}"' in call.args for call in self.calls())

    def lane(self, lane: str) -> list[RecordedCall]:
        """The calls of one lane, in order, without live calls that raised. Independent effects have no order."""
        return [
            call
            for call in self.calls()
            if call.lane == lane and not (lane == LIVE_LANE and call.error is not None)
        ]


def from_journal(journal: Journal, name: str, place: JournalLocation) -> RecordedRun:
    """The step with that run key, transaction id, or prefix of an id.

    Raises:
        MisuseError: the journal has none, or several.
        JournalSealed: something is sealed under a key that is not available.
        JournalError: the record was changed outside the SDK.
    """
    found = _described(journal, name, place)
    chosen = _chosen(found, name)
    return _run(chosen, found if chosen.key == name else _described(journal, chosen.key, place), name)


def from_export(document: Path | Mapping[str, Any], name: str) -> RecordedRun:
    """The same from a document of `countersign journal export --format json`: its path, or its value.

    Raises:
        MisuseError: it is no such document, or has no such step, or several.
        JournalError: it was edited.
    """
    everything = _export(document)
    named = [one for one in everything if name == one.key or one.txn.startswith(name)]
    return _run(_chosen(named, name), everything, name)


def _export(document: Path | Mapping[str, Any]) -> Sequence[RecordedTransaction]:
    text = repr(str(document)) if isinstance(document, Path) else "this document"
    try:
        value = load(document.read_bytes(), _EXPORT_LIMITS) if isinstance(document, Path) else document
        read = _Export.model_validate(value, strict=False)
        digests = [
            transaction_digest(one) for one in _SignedExport.model_validate(value, strict=False).transactions
        ]
    except OSError as error:
        raise MisuseError(f"{text} cannot be read: {error.strerror}") from error
    except AdmissionError as error:
        raise MisuseError(f"{text} is no export of a journal: {error}; {_WRITE_ONE}") from error
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False)[0]
        where = "/".join(map(str, first["loc"])) or "the whole"
        raise MisuseError(
            f"{text} is no export of a journal: {where}: {first['msg']}; {_WRITE_ONE}"
        ) from error
    if read.format != FORMAT:
        raise MisuseError(f"{text} is of the form {read.format!r}; this SDK reads {FORMAT!r}")
    return [*_vouched_for(read.transactions, digests, text)]


def _vouched_for(
    found: Sequence[RecordedTransaction], digests: Sequence[str], text: str
) -> Iterator[RecordedTransaction]:
    """These transactions, marked by whether their digests match.

    Raises:
        JournalError: a digest differs, or is missing where others exist.
    """
    of_before = all(one.digest is None for one in found)
    for one, digest in zip(found, digests, strict=True):
        if not of_before and one.digest != digest:
            why = "its digest is missing" if one.digest is None else "its digest differs"
            raise JournalError(
                f"transaction {one.txn[:12]} of {text} is not as it was exported: {why}. Nothing is replayed "
                "from it; "
                f"{_WRITE_ONE}"
            )
        yield one.model_copy(update={"vouched_for": not of_before})


def _described(journal: Journal, name: str, place: JournalLocation) -> Sequence[RecordedTransaction]:
    """What the journal holds under that name, after its chains were verified."""
    findings = verify(place, name).findings
    if findings:
        raise JournalError(
            f"the journal's record of {name!r} is not as the SDK wrote it: {findings[0].what}. Nothing is replayed "
            "from it; `countersign journal verify` lists everything"
        )
    return [_opened(journal, record) for record in journal.transactions.find(name)]


def _opened(journal: Journal, record: TransactionRecord) -> RecordedTransaction:
    """One transaction with its hidden results unsealed for the step."""
    read = RecordedTransaction.model_validate(describe_transaction(journal, record), strict=False)
    if record.staging is None:
        return read
    lanes = {call.lane for call in read.effects}
    rows = {(lane, row.seq): row for lane in lanes for row in journal.transactions.effects(record, lane)}
    calls = []
    for one in read.effects:
        call, result = one, rows[one.lane, one.seq].result
        if call.result == HIDDEN and result is not None:
            call = call.model_copy(update={"opened": result.decode()})
        calls.append(call)
    return read.model_copy(update={"effects": tuple(calls)})


def _chosen(found: Sequence[RecordedTransaction], name: str) -> RecordedTransaction:
    steps = {(one.agent, one.key, one.independent) for one in found}
    if not found:
        raise MisuseError(f"there is no transaction {name!r}; {_SHOWN}")
    if len(steps) > 1:
        ids = ", ".join(sorted(one.txn[:12] for one in found))
        raise MisuseError(f"{name!r} names several steps; name one by its transaction: {ids}")
    return found[0]


def _run(chosen: RecordedTransaction, everything: Sequence[RecordedTransaction], name: str) -> RecordedRun:
    step = (chosen.agent, chosen.key, chosen.independent)
    of_it = tuple(one for one in everything if (one.agent, one.key, one.independent) == step)
    if not any(call.lane in {STAGED_LANE, LIVE_LANE} for one in of_it if one.attempt for call in one.effects):
        raise MisuseError(
            f"of {name!r} no list of calls was ever submitted ({chosen.state}), so there is nothing to replay"
        )
    return RecordedRun(agent=chosen.agent, key=chosen.key, independent=chosen.independent, transactions=of_it)
