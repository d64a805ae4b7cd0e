"""The calls of one run, in the journal and in order: what a block has asked for so far.

A list in the journal only grows. Where a nested transaction is rolled back, or calls of several tasks are put in order,
the run begins another list with the calls that stay. A live call that raised goes with it, as undone, and is not kept.
A step that staged nothing is neither reviewed nor redeemed; one that did no live work either spends no key.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from countersign.commit.plan import Plan, StagedCall
from countersign.contract import names
from countersign.errors import (
    AlreadyRedeemed,
    CountersignError,
    JournalError,
    LiveCommitFailed,
    OutcomeUnknown,
    ServiceRefused,
    ServiceUnavailable,
)
from countersign.journal import Journal, Lease, LocalState, LocalTxn, StagedRow, TransactionRecord
from countersign.journal.queries import LIVE_LANE, STAGED_LANE
from countersign.live.sessions import AdapterCommitError
from countersign.live.work import LiveWork
from countersign.runtime import Engine
from countersign.tools.definition import Tool
from countersign.tools.placeholder import Placeholder, settle

log: Final = logging.getLogger("countersign")

_MAX_RETURNED: Final = 4 * 1024 * 1024  # bytes of one run: a loop over a table is not to fill the journal


class LiveKeys(NamedTuple):
    """The call keys of the live effects of one run: of those that stand so far, and of those that raised."""

    stand: tuple[str, ...]
    raised: tuple[str, ...]


class CallList:
    """The staged calls and live effects of one run of one transaction."""

    def __init__(self, journal: Journal, lease: Lease) -> None:
        self._journal = journal
        self._lease = lease
        self._calls: list[StagedCall] = []
        self._ran: list[StagedRow] = []
        self._raised: list[tuple[StagedRow, str]] = []  # and why
        self._dropped_secrets = False  # of calls that were taken back
        self._live_seq = 0
        self._returned: dict[str, bytes] = {}
        self._returned_bytes = 0
        self._placeholders: dict[str, Placeholder[Any]] = {}
        self.staging = journal.transactions.begin_staging(lease)
        self.is_first = self.staging == 1  # nobody has run this key before

    @property
    def calls(self) -> tuple[StagedCall, ...]:
        """The staged calls, in order."""
        return tuple(self._calls)

    @property
    def live(self) -> int:
        """How many live effects there are; those that raised are none."""
        return len(self._ran)

    @property
    def ran(self) -> tuple[StagedRow, ...]:
        """They themselves, in order."""
        return tuple(self._ran)

    @property
    def live_call_keys(self) -> LiveKeys:
        """Their call keys, and those of what raised."""
        return LiveKeys(
            tuple(one.call_key for one in self._ran), tuple(one.call_key for one, _ in self._raised)
        )

    @property
    def returned(self) -> Mapping[str, bytes]:
        """What they returned, by effect, as far as it was kept."""
        ids = (row.effect_id for row in self._ran)
        return {one: self._returned[one] for one in ids if one in self._returned}

    def stage(self, call: StagedCall) -> Placeholder[Any]:
        """Write one call down and answer its placeholder."""
        self._journal.transactions.stage(self._lease, self.staging, _staged_row(call, len(self._calls) + 1))
        self._calls.append(call)
        placeholder: Placeholder[Any] = Placeholder(call.tool.name, call.effect_id, call.call_key)
        self._placeholders[call.effect_id] = placeholder
        return placeholder

    def run(self, tool: Tool, raw: bytes, call_key: str, secret: tuple[str, ...]) -> StagedRow:
        """Write one live effect down, before it runs."""
        effect_id = names.effect_id(txn=self._lease.txn, call_key=call_key)
        row = StagedRow(effect_id, call_key, tool.name, raw, LIVE_LANE, self._live_seq + 1, secret)
        self._journal.transactions.stage(self._lease, self.staging, row)
        self._live_seq += 1
        self._ran.append(row)
        return row

    def keep(self, row: StagedRow, tool: Tool, answer: object) -> None:
        """Hear what a live effect has returned. It is written down as it is now, and with the list: not where JSON does
        not hold it, or too much was returned before.
        """
        raw = tool.signature.result.dump(answer)
        if raw is not None and self._returned_bytes + len(raw) <= _MAX_RETURNED:
            self._returned_bytes += len(raw)
            self._returned[row.effect_id] = raw

    @property
    def has_secrets(self) -> bool:
        """Whether what its block raises may repeat a secret argument, as far as anybody knows."""
        return self.live_has_secrets or self._dropped_secrets or _may_hold_secrets(self._calls)

    @property
    def live_has_secrets(self) -> bool:
        """The same of its live effects, of which it is always known."""
        return any(row.secret for row in (*self._ran, *(row for row, _ in self._raised)))

    async def learn_secrets(self, engine: Engine) -> None:
        """Find out what is secret of the staged calls, so that they can be kept although they are not submitted. Where
        no manifest can be had, a call keeps its name alone.
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

    def leave_out(self, rows: Sequence[StagedRow], why: str) -> None:
        """Go on without these live effects: one raised, and its savepoint has taken all of them back."""
        standing = [row for row in rows if row in self._ran]
        ids = [row.effect_id for row in standing]
        self._journal.transactions.undone_alone(self._lease, self.staging, ids, why)
        for row in standing:  # one by one: another thread may write its own down meanwhile
            self._ran.remove(row)
            self._raised.append((row, why))

    def take_back(self, staged: int, live: int, why: str) -> None:
        """Go on without what came after so many staged calls and so many live effects; `why` is kept with each."""
        kept, dropped = self._calls[:staged], self._calls[staged:]
        if not dropped and len(self._ran) == live:
            return
        rows = (*self.rows[staged:], *self._ran[live:])
        del self._ran[live:]
        self._dropped_secrets = self._dropped_secrets or _may_hold_secrets(rows)
        self._begin_again(kept, rows, why)
        for call in dropped:
            settle(self._placeholders.pop(call.effect_id), LocalState.WITHDRAWN.value)

    def order(self, start: int, calls: Sequence[StagedCall]) -> None:
        """Let the calls from `start` on stand in this order: the same ones as before."""
        if self._calls[start:] != list(calls):
            self._begin_again([*self._calls[:start], *calls])

    @property
    def placeholders(self) -> Mapping[str, Placeholder[Any]]:
        """What was handed out for each staged call, by effect."""
        return MappingProxyType(self._placeholders)

    def settle(self, results: Mapping[str, object], *, submitted: bool) -> None:
        """Tell every placeholder what the journal says of its effect; nothing more is claimed. `results`: what this run
        was answered, by effect. Where the journal cannot be read, what is among them has fired, and of the rest nobody
        knows once the list was `submitted`.
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
                # it stands, whatever the block ends with
                result = signatures[row.effect_id].result.load(row.result)
            self._settle(row.effect_id, row.state.value, result, row.error)

    def _settle(self, effect_id: str, outcome: str, result: object, error: str | None) -> None:
        placeholder = self._placeholders.get(effect_id)
        if placeholder is not None:
            settle(placeholder, outcome, result, error)

    def _begin_again(
        self, calls: list[StagedCall], dropped: Sequence[StagedRow] = (), why: str | None = None
    ) -> None:
        rows = [_staged_row(call, seq) for seq, call in enumerate(calls, start=1)]
        transactions = self._journal.transactions
        # one that raised and was done again is told by its later row
        stand = {row.effect_id for row in self._ran}
        with self._journal.database.unit(durable=False):
            staging = transactions.relist(
                self._lease, self.staging, [*rows, *self._ran], dropped=dropped, why=why
            )
            for row, why in self._raised:
                if row.effect_id not in stand:
                    transactions.stage(self._lease, staging, row)
                    transactions.undone_alone(self._lease, staging, [row.effect_id], why)
        self.staging, self._calls = staging, calls


def _may_hold_secrets(calls: Sequence[StagedCall | StagedRow]) -> bool:
    return any(call.secret is None or call.secret for call in calls)


def _staged_row(call: StagedCall, seq: int) -> StagedRow:
    return StagedRow(
        *(call.effect_id, call.call_key, call.tool.name, call.args, STAGED_LANE, seq, call.secret),
        tool_digest=call.tool_digest,
    )


_NOTHING: Final = "its block asked for nothing"
# on its way, and nobody heard of it again
_MAYBE_ASKED: Final = frozenset({LocalTxn.FROZEN, LocalTxn.STOPPED})
_ASKED: Final = frozenset({LocalTxn.REVIEW, LocalTxn.READY}) | _MAYBE_ASKED


def require_same_live_calls(journal: Journal, earlier: TransactionRecord, plan: Plan, ran: LiveKeys) -> None:
    """Live work alone was committed under this key, so this step has been done, as with a redemption. What raises now
    may have been done then: a row that is there already is not put in twice.

    Raises:
        AlreadyRedeemed: what was committed is other work than this run's, or nobody knows what stands of it.
    """
    done = {row.call_key for row in journal.transactions.live(earlier)}
    same = not plan.calls and {*ran.stand} <= done <= {*ran.stand, *ran.raised}
    if not (earlier.landed and same):
        why = "another list of calls was committed" if earlier.landed else earlier.note or ""
        raise AlreadyRedeemed(plan.run_key, plan.txn, earlier.state.value, why, finished=earlier.landed)


def require_live_work_kept(journal: Journal, plan: Plan, ran: LiveKeys) -> None:
    """This key was redeemed and has come to a good end: the live work of this run is among what was kept, or has been
    undone. Less than that may be asked for: what is there already need not be put there again.

    Raises:
        AlreadyRedeemed: other live work was kept, and this run's was not.
    """
    record = journal.transactions.require(plan.txn)
    kept = {row.call_key for row in journal.transactions.live(record) if row.state is LocalState.KEPT}
    if not {*ran.stand} <= kept:
        why = "other live work was committed with it, and that of this run was undone"
        raise AlreadyRedeemed(plan.run_key, plan.txn, record.state.value, why)


async def withdraw_earlier(engine: Engine, earlier: TransactionRecord) -> None:
    """Nobody needs to answer what an earlier run asked, nor may fire what people agreed to.

    Raises:
        ServiceRefused, ServiceUnavailable: the service does not take it back.
    """
    if earlier.state not in _ASKED:
        return
    try:
        await engine.service.withdraw(earlier.txn, "its rerun staged nothing")
    except ServiceRefused as refused:
        never_arrived = earlier.state in _MAYBE_ASKED and refused.is_not_found
        if not never_arrived:
            raise


def commit_live_only(journal: Journal, lease: Lease, live: LiveWork, plan: Plan, attempt_id: str) -> None:
    """Commit the live adapters, and note that their work stands, if there is any.

    Raises:
        Moved: what they saw was changed by somebody else.
        LeaseLost: another process has taken it over, and may have undone it.
        LiveCommitFailed: one of them could not, with those that had.
        OutcomeUnknown: one of them does not know whether it could.
    """
    if not plan.live:
        journal.transactions.end(lease, LocalTxn.ENDED, _NOTHING)
        return
    live.verify_isolation()
    live.prepare(attempt_id)
    journal.leases.renew(lease)  # until it was prepared, recovery could not see that it was to be committed

    def kept() -> None:
        journal.transactions.end_live(lease, plan.staging, LocalState.KEPT)
        journal.transactions.end(lease, LocalTxn.SETTLED)

    try:
        live.commit(attempt_id, kept)
    except AdapterCommitError as failed:
        if failed.unknown:
            journal.transactions.end(lease, LocalTxn.UNSETTLED, failed.unknown)
            raise OutcomeUnknown(plan.run_key, plan.txn, [], {}, failed.unknown) from failed.__cause__
        state = LocalTxn.UNSETTLED if failed.committed else LocalTxn.ENDED
        journal.transactions.end(lease, state, str(failed))
        raise LiveCommitFailed(
            plan.run_key, plan.txn, failed.adapter, str(failed), {}, committed=failed.committed
        ) from failed.__cause__
