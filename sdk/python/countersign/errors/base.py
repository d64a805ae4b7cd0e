"""The base classes of the error tree, and the errors of misuse and of external faults."""

from __future__ import annotations

from typing import Any, ClassVar, Final


class CountersignError(Exception):
    """The base class. `code` is for programs, the text for people and agents."""

    code: ClassVar[str] = "countersign_error"


class MisuseError(CountersignError):
    """The program asked for something impossible; nothing was sent and nothing fired."""

    code = "misuse"


class Stopped(CountersignError):
    """Refused, or not allowed yet. Live effects have been undone."""

    code = "stopped"


class WorldError(CountersignError):
    """An external fault: nothing is wrong with the call."""

    code = "world"


class OutsideTransaction(MisuseError):
    """A gated tool was called outside a transaction."""

    code = "outside_transaction"


class NotStageable(MisuseError):
    """A call that cannot be described completely before it happens."""

    code = "not_stageable"


class PlaceholderUsed(MisuseError, TypeError):
    """A placeholder was used as a value: a staged call has no result before the commit."""

    code = "placeholder_used"


class RegistrationError(MisuseError):
    """A tool, compensator or manifest that contradicts itself or another."""

    code = "registration"


class RerunDiffers(MisuseError):
    """The body staged another list of calls twice in a row, so no decision could ever match it."""

    code = "rerun_differs"

    def __init__(self, key: str, position: int, before: str | None, now: str | None) -> None:
        self.key, self.position, self.before, self.now = key, position, before, now
        super().__init__(
            f"transaction {key!r} stages another list of calls at every rerun; call {position} was"
            f" {before or 'absent'} and is now {now or 'absent'}. Make the body name the same calls with the same"
            " arguments each time (no clocks, no random values), or use another key for another intent."
        )


class SettingsError(MisuseError):
    """A setting is missing or unsafe."""

    code = "settings"


_NOT_FOUND: Final = 404
_PARTS: Final = 4  # of a lease's name after its host: boot id, process id, process start and a number


class ServiceUnavailable(WorldError):
    """The service does not respond, or not as the API specifies. Fail closed: nothing was fired."""

    code = "service_unavailable"

    def __init__(self, what: str, why: str) -> None:
        self.why = why
        super().__init__(
            f"the policy service did not answer {what}: {why}. Nothing was fired without its answer. Try again later "
            "under the same key; it cannot happen twice."
        )


class ServiceRefused(WorldError):
    """The service responded with a problem (RFC 9457). `problem_code` is stable, `extras` its other members."""

    code = "service_refused"

    def __init__(
        self, status: int, problem_code: str, detail: str, extras: dict[str, Any] | None = None
    ) -> None:
        self.status, self.problem_code, self.detail = status, problem_code, detail
        self.extras = dict(extras or {})
        super().__init__(
            f"the policy service refused the request ({status} {problem_code}): {detail}. Change what it names, or "
            "tell the operator"
        )

    @property
    def is_not_found(self) -> bool:
        """Whether the service does not have the resource."""
        return self.status == _NOT_FOUND

    @property
    def effect_states(self) -> dict[str, str]:
        """The states of the effects that the refusal names, by effect id, if it does."""
        effects = self.extras.get("effects")
        if not isinstance(effects, list) or not all(isinstance(one, dict) for one in effects):
            return {}
        return {str(one.get("effect_id")): str(one.get("state")) for one in effects}


class OverQuota(ServiceRefused):
    """The agent exceeded a quota for longer than a call waits: nothing was fired. `retry_after` is in seconds;
    `setting` is the setting that an operator would change.
    """

    code = "over_quota"

    @property
    def setting(self) -> str | None:
        """The service's setting that is the limit, if the response names it."""
        return str(self.extras["setting"]) if "setting" in self.extras else None

    @property
    def retry_after(self) -> int | None:
        """Seconds after which the same request may succeed, if the response says so."""
        seconds = self.extras.get("retry_after_seconds")
        return seconds if type(seconds) is int else None


def describe_lease_owner(holder: str) -> str:
    """The process and host of a lease owner, for people."""
    host, *rest = holder.split("/")
    return f"process {rest[1]} on {host}" if len(rest) == _PARTS else holder


class TransactionBusy(WorldError):
    """Another live process owns this transaction's journal entry. `holder` is the name of its lease; `waited` is how
    many seconds this run waited for it (`Settings.lease_wait_seconds`).
    """

    code = "transaction_busy"

    def __init__(self, key: str, holder: str, waited: float) -> None:
        self.key, self.holder, self.waited = key, holder, waited
        super().__init__(
            f"transaction {key!r} is being run by {describe_lease_owner(holder)}; waited {waited:.0f} s. Try again "
            "when it has ended: a second run finds its results."
        )


class ResourceBusy(WorldError):
    """Another `Serialize` transaction has locked a live adapter's resource. Nothing of this transaction has begun.

    `run_key` and `holder` identify the transaction that holds the lock and the process that runs it.
    """

    code = "resource_busy"

    def __init__(self, resource: str, run_key: str, holder: str, waited: float) -> None:
        self.resource, self.run_key, self.holder, self.waited = resource, run_key, holder, waited
        super().__init__(
            f"{resource!r} is claimed by transaction {run_key!r}, run by {holder}; waited {waited:.1f} s. Nothing was "
            "done: try again when it has ended, or write a longer Serialize(timeout_seconds=...)."
        )


class CommitUnknown(WorldError):
    """Raised by a live adapter's `commit` that got no answer and cannot find out now whether it succeeded."""

    code = "commit_unknown"

    def __init__(self, adapter: str, why: str) -> None:
        super().__init__(f"live adapter {adapter!r} has no answer to its commit ({why})")


class WorkerStopping(WorldError):
    """The worker was asked to stop: it begins nothing more, and another worker continues."""

    code = "worker_stopping"

    def __init__(self) -> None:
        super().__init__(
            "the worker was asked to stop; the next one goes on from here: `countersign worker --tools MODULE`"
        )


class JournalError(WorldError):
    """The journal cannot be read or written; without it nothing fires."""

    code = "journal"


class JournalSealed(JournalError):
    """Secrets in the journal cannot be read or written, because the key `key_id` is not available here."""

    code = "journal_sealed"

    def __init__(self, why: str, key_id: str | None = None) -> None:
        self.key_id = key_id
        super().__init__(
            f"{why}. Nothing fires without it: set COUNTERSIGN_JOURNAL_KEY to the file that holds the journal's key"
        )


class LeaseLost(JournalError):
    """This run no longer owns its transaction, so it may not fire: another process took it over, or the journal lost
    its last write.
    """

    code = "lease_lost"
