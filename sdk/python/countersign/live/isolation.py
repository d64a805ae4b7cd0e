"""What a transaction does about others that work on the same resources: `isolation=` of `transaction` and
`run_transaction`.

    Abort()      what live effects saw is compared before anything is asked; if it has moved, `Moved`. Always done
    Retry(n)     `run_transaction` runs the body again when it has, n times in all; each run is a list of its own
    Serialize()  first waits until no other Serialize transaction on this journal has the resources, then holds them

`Serialize` spares the work that a conflict would undo; what decides stays the comparison, for others need not have
said Serialize. It takes every resource as the transaction is entered, all of them at once: nobody waits in the middle
of a tool, where an event loop would stand still, and nobody waits for a second while he holds a first, so no circle of
waiting can arise. It holds nothing while people decide: with live effects the transaction has ended by then, and
without any the resources are given up before anybody is asked.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeAlias

from countersign.adapters.reads import READS
from countersign.backoff import backoff
from countersign.errors import MisuseError, Moved, ResourceBusy

if TYPE_CHECKING:
    from countersign.adapters.protocol import LiveAdapter
    from countersign.engine import Engine
    from countersign.journal import Lease

_MAX_ATTEMPTS: Final = 100  # a resource that moved so often needs Serialize, not patience
_PAUSE_SECONDS: Final = 0.02  # before the first repeat; doubled each time, half of it random
_MAX_PAUSE_SECONDS: Final = 0.5
_POLL_SECONDS: Final = 0.05  # between two looks at somebody else's claim


@dataclass(frozen=True, slots=True)
class Abort:
    """Stop with `Moved` when somebody else changed what the live effects saw. What happens where nothing is said."""


ABORT: Final = Abort()


@dataclass(frozen=True, slots=True)
class Retry:
    """Run the body again when somebody else changed what its live effects saw; `attempts` runs in all, then `Moved`.

    Raises:
        MisuseError: fewer than two attempts are no repeat; more than a hundred are none that would help.
    """

    attempts: int = 3

    def __post_init__(self) -> None:
        if type(self.attempts) is not int or not 1 < self.attempts <= _MAX_ATTEMPTS:
            raise MisuseError(
                f"Retry(attempts={self.attempts!r}) must be 2 to {_MAX_ATTEMPTS} runs, the first included; for one "
                "run write Abort()"
            )


@dataclass(frozen=True, slots=True)
class Serialize:
    """Have the resources to itself, as against all other `Serialize` transactions on the same journal.

    `adapters` are the live adapters that the block will use; without them they are those of every registered live
    tool. A live effect on another one is refused. `timeout_seconds` is how long entering may wait for others.

    Raises:
        MisuseError: the time is negative, or something in `adapters` is no live adapter.
    """

    timeout_seconds: float = 30.0
    adapters: Sequence[LiveAdapter] = ()

    def __post_init__(self) -> None:
        if not self.timeout_seconds >= 0:
            raise MisuseError(
                f"Serialize(timeout_seconds={self.timeout_seconds!r}) must be zero seconds or more"
            )
        given: object = self.adapters
        if isinstance(given, str) or not isinstance(given, Sequence):
            raise MisuseError(
                f"adapters={given!r} is no list of live adapters; write Serialize(adapters=[files])"
            )
        for adapter in given:
            if not isinstance(getattr(adapter, "name", None), str):
                raise MisuseError(
                    f"{adapter!r} is no live adapter; write Serialize(adapters=[files]), with the adapter itself"
                )


Isolation: TypeAlias = Abort | Retry | Serialize


def require_isolation(isolation: object, *, reruns: bool) -> None:
    """Refuse what is no policy, or not one of this place.

    Raises:
        MisuseError: saying what to write.
    """
    if not isinstance(isolation, Abort | Retry | Serialize):
        raise MisuseError(
            f"isolation={isolation!r} is no policy; write isolation=Abort(), Retry(attempts=3) or "
            "Serialize(timeout_seconds=30)"
        )
    if isinstance(isolation, Retry) and not reruns:
        raise MisuseError(
            "a `with` block cannot be run again by the transaction it belongs to; put the body into a function and "
            f"write run_transaction(step, key=..., isolation=Retry(attempts={isolation.attempts}))"
        )


async def claim(engine: Engine, lease: Lease, policy: Serialize) -> frozenset[str]:
    """Wait for the resources and take all of them; answers their names.

    Raises:
        ResourceBusy: somebody alive still has one when the time is up; nothing is taken.
    """
    chosen = policy.adapters or [tool.adapter for tool in engine.registry if tool.adapter is not None]
    resources = frozenset(adapter.name for adapter in chosen if adapter is not READS)
    claims, waited = engine.journal.claims, 0.0
    while resources:
        taken = claims.standing(resources) or claims.take(lease, resources)
        if taken is None:
            break
        if waited >= policy.timeout_seconds:
            raise ResourceBusy(taken.resource, taken.run_key, taken.holder, waited)
        pause = min(_POLL_SECONDS, policy.timeout_seconds - waited)
        await engine.waits.sleep(pause)
        waited += pause
    return resources


@dataclass(slots=True)
class Attempts:
    """The runs of one `run_transaction` that somebody else has spoilt."""

    allowed: int
    spoilt: int = 0

    @classmethod
    def of(cls, isolation: Isolation) -> Attempts:
        """As many as the policy says."""
        return cls(isolation.attempts if isinstance(isolation, Retry) else 1)

    def pause_after(self, moved: Moved) -> float:
        """How long to let the others go on before the next run.

        Raises:
            Moved: there is no next; it names how many there were.
        """
        self.spoilt += 1
        if self.spoilt >= self.allowed:
            raise moved if self.allowed == 1 else moved.after(self.spoilt)
        return backoff(_PAUSE_SECONDS, self.spoilt - 1, _MAX_PAUSE_SECONDS)
