"""The calls of one run, in the journal and in order.

A list in the journal only grows. If a nested transaction is rolled back, or calls of several tasks are sorted, the run
begins another list with the remaining calls. A live call that raised is included as undone. A step without staged calls
is neither reviewed nor redeemed; without live work either, it does not use up its key.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final

from countersign.commit.plan import StagedCall
from countersign.contract import digests
from countersign.errors import (
    CountersignError,
    JournalError,
    ServiceUnavailable,
)
from countersign.journal import Journal, Lease, LocalState, StagedRow
from countersign.journal.records import LIVE_LANE, STAGED_LANE
from countersign.runtime import Engine
from countersign.tools.definition import Tool
from countersign.tools.results import Placeholder, settle
from countersign.transactions.earlier_run import LiveKeys

log: Final = logging.getLogger("countersign")

_MAX_RETURNED: Final = 4 * 1024 * 1024  # bytes of one run: a loop over a table must not fill the journal


class CallList:
    """The staged calls and live effects of one run of one transaction."""

    def __init__(self, journal: Journal, lease: Lease) -> None:
        self._journal = journal
        self._lease = lease
        self._calls: list[StagedCall] = []
        self._ran: list[StagedRow] = []
        self._raised: list[tuple[StagedRow, str]] = []  # and why
        self._dropped_secrets = False  # of calls that were rolled back
        self._live_seq = 0
        self._returned: dict[str, bytes] = {}
        self._returned_bytes = 0
        self.placeholders: dict[str, Placeholder[Any]] = {}
        self.staging = journal.transactions.begin_staging(lease)
        self.is_first = self.staging == 1  # no earlier run of this key

    @property
    def calls(self) -> tuple[StagedCall, ...]:
        """The staged calls, in order."""
        return tuple(self._calls)

    @property
    def live(self) -> int:
        """The number of live effects, without those that raised."""
        return len(self._ran)

    @property
    def ran(self) -> tuple[StagedRow, ...]:
        """The live effects, in order, without those that raised."""
        return tuple(self._ran)

    @property
    def live_call_keys(self) -> LiveKeys:
        """The call keys of live effects, and of those that raised."""
        return LiveKeys(
            tuple(one.call_key for one in self._ran), tuple(one.call_key for one, _ in self._raised)
        )

    @property
    def returned(self) -> Mapping[str, bytes]:
        """The kept results of live effects, by effect id."""
        ids = (row.effect_id for row in self._ran)
        return {one: self._returned[one] for one in ids if one in self._returned}

    def stage(self, call: StagedCall) -> Placeholder[Any]:
        """Journal one call and return its placeholder."""
        self._journal.transactions.stage(self._lease, self.staging, _staged_row(call, len(self._calls) + 1))
        self._calls.append(call)
        placeholder: Placeholder[Any] = Placeholder(call.tool.name, call.effect_id, call.call_key)
        self.placeholders[call.effect_id] = placeholder
        return placeholder

    def run(self, tool: Tool, raw: bytes, call_key: str, secret: tuple[str, ...]) -> StagedRow:
        """Journal one live effect before it runs."""
        effect_id = digests.effect_id(txn=self._lease.txn, call_key=call_key)
        row = StagedRow(effect_id, call_key, tool.name, raw, LIVE_LANE, self._live_seq + 1, secret)
        self._journal.transactions.stage(self._lease, self.staging, row)
        self._live_seq += 1
        self._ran.append(row)
        return row

    def keep(self, row: StagedRow, tool: Tool, answer: object) -> None:
        """Keep the result of a live effect as it is now. It is journaled with the list, unless it is no JSON or the
        results are too large.
        """
        raw = tool.signature.result.dump(answer)
        if raw is not None and self._returned_bytes + len(raw) <= _MAX_RETURNED:
            self._returned_bytes += len(raw)
            self._returned[row.effect_id] = raw

    @property
    def has_secrets(self) -> bool:
        """Whether an error of the block may quote a secret argument, as far as known."""
        return self.live_has_secrets or self._dropped_secrets or _may_hold_secrets(self._calls)

    @property
    def live_has_secrets(self) -> bool:
        """Whether one of the live effects has secrets. This is always known."""
        return any(row.secret for row in (*self._ran, *(row for row, _ in self._raised)))

    async def learn_secrets(self, engine: Engine) -> None:
        """Read the manifests of staged calls, so that the journal can keep calls that are not submitted. A call
        without a manifest keeps its name only.
        """
        for position, call in enumerate(self._calls):
            try:
                manifest = await engine.manifests.of(call.tool, engine.service, once=True)
            except ServiceUnavailable:
                return
            except CountersignError as error:
                log.warning("the journal does not keep the arguments of %s: %s", call.tool.name, error)
            else:
                self._calls[position] = call.learned(manifest)

    @property
    def rows(self) -> tuple[StagedRow, ...]:
        """The staged calls as the journal holds them."""
        return tuple(_staged_row(call, seq) for seq, call in enumerate(self._calls, start=1))

    def drop_undone(self, rows: Sequence[StagedRow], why: str) -> None:
        """Continue without these live effects: one raised, and its savepoint rolled all of them back."""
        kept = [row for row in rows if row in self._ran]
        ids = [row.effect_id for row in kept]
        self._journal.transactions.mark_undone(self._lease, self.staging, ids, why)
        for row in kept:  # one by one: another thread may add its own meanwhile
            self._ran.remove(row)
            self._raised.append((row, why))

    def roll_back(self, staged: int, live: int, why: str) -> None:
        """Continue with this many staged calls and live effects; `why` is kept with each of the others."""
        kept, dropped = self._calls[:staged], self._calls[staged:]
        if not dropped and len(self._ran) == live:
            return
        rows = (*self.rows[staged:], *self._ran[live:])
        del self._ran[live:]
        self._dropped_secrets = self._dropped_secrets or _may_hold_secrets(rows)
        self._begin_again(kept, rows, why)
        for call in dropped:
            settle(self.placeholders.pop(call.effect_id), LocalState.WITHDRAWN.value)

    def order(self, start: int, calls: Sequence[StagedCall]) -> None:
        """Put the calls from `start` on into this order."""
        if self._calls[start:] != list(calls):
            self._begin_again([*self._calls[:start], *calls])

    def settle(self, results: Mapping[str, object], *, submitted: bool) -> None:
        """Set every placeholder to the journal's state of its effect. If the journal cannot be read, effects in
        `results` have fired, and the others are unknown once the list was `submitted`.
        """
        try:
            record = self._journal.transactions.require(self._lease.txn)
            rows = self._journal.transactions.effects(record) if record.staging is not None else ()
        except JournalError as error:
            log.warning("what became of transaction %s cannot be read: %s", self._lease.txn[:12], error)
            rest = LocalState.UNKNOWN if submitted else LocalState.STAGED
            for call in self._calls:
                state = LocalState.FIRED if call.effect_id in results else rest
                self._settle(call.effect_id, state.value, results.get(call.effect_id), None)
            return
        signatures = {call.effect_id: call.tool.signature for call in self._calls}
        for row in rows:
            result = results.get(row.effect_id)
            if row.effect_id not in results and row.result is not None and row.effect_id in signatures:
                # the effect fired, even if the block raises
                result = signatures[row.effect_id].result.load(row.result)
            self._settle(row.effect_id, row.state.value, result, row.error)

    def _settle(self, effect_id: str, outcome: str, result: object, error: str | None) -> None:
        placeholder = self.placeholders.get(effect_id)
        if placeholder is not None:
            settle(placeholder, outcome, result, error)

    def _begin_again(
        self, calls: list[StagedCall], dropped: Sequence[StagedRow] = (), why: str | None = None
    ) -> None:
        rows = [_staged_row(call, seq) for seq, call in enumerate(calls, start=1)]
        transactions = self._journal.transactions
        # an effect that raised and was repeated has its later row
        stand = {row.effect_id for row in self._ran}
        rows += self._ran
        with self._journal.database.unit(durable=False):
            staging = transactions.relist(self._lease, self.staging, rows, dropped=dropped, why=why)
            for row, why in self._raised:
                if row.effect_id not in stand:
                    transactions.stage(self._lease, staging, row)
                    transactions.mark_undone(self._lease, staging, [row.effect_id], why)
        self.staging, self._calls = staging, calls


def _may_hold_secrets(calls: Sequence[StagedCall | StagedRow]) -> bool:
    return any(call.secret is None or call.secret for call in calls)


def _staged_row(call: StagedCall, seq: int) -> StagedRow:
    return StagedRow(
        *(call.effect_id, call.call_key, call.tool.name, call.args, STAGED_LANE, seq, call.secret),
        tool_digest=call.tool_digest,
    )


@contextmanager
def log_cleanup_errors(txn: str) -> Iterator[None]:
    """Log a journal error during cleanup: it must not hide the transaction's own result."""
    try:
        yield
    except JournalError as error:
        log.warning("transaction %s could not be cleaned up in the journal: %s", txn[:12], error)
