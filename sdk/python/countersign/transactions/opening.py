"""`transaction(...)`: validates the options of a step (key, wait, claims) and opens it."""

from __future__ import annotations

import math
import secrets
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from pydantic import ValidationError

from countersign.commit.review import CommitOptions, OnQuestion, QuestionResponder, require_utf8
from countersign.contract.wire import Claimed
from countersign.errors import UNNAMED, MisuseError
from countersign.errors.pending import Proposal
from countersign.live.isolation import ABORT, Abort, Retry, Serialize
from countersign.tools.context import open_transaction, require_not_importing
from countersign.transactions.transaction import Transaction

if TYPE_CHECKING:
    from countersign.runtime import Runtime
    from countersign.simulation.offline import Simulation

MAX_KEY: Final = 200  # characters


def require_key(key: object, of: str = "transaction", *, longest: int = MAX_KEY, why: str = "") -> str:
    """Validate the key of a run, by which it is found again.

    Raises:
        MisuseError: it is no text or too long; `why` names a further limit.
    """
    if key is None:
        raise MisuseError(
            f"this {of} may run again, so it needs a key that is the same at each run: write key='ticket-4711' or "
            "the like"
        )
    if not isinstance(key, str):
        raise MisuseError(f"the key of a {of} is text: write key={str(key)!r} in place of key={key!r}")
    if not 0 < len(key) <= longest:
        raise MisuseError(f"the key of a {of} has 1 to {longest} characters, this has {len(key)}{why}")
    if key.startswith(UNNAMED):
        raise MisuseError(
            f"keys that begin with {UNNAMED!r} are reserved for steps without a key: use another key than {key!r}"
        )
    require_utf8(f"the key of a {of}", key)
    return key


def require_wait(wait: object) -> None:
    """Validate a number of seconds.

    Raises:
        MisuseError: it is no such number.
    """
    if isinstance(wait, bool) or not isinstance(wait, int | float) or not (math.isfinite(wait) and wait >= 0):
        raise MisuseError(f"wait={wait!r} is no number of seconds; ten minutes are wait=600")


def build_claimed(purpose: object, reasoning: object, on_behalf_of: object) -> Claimed | None:
    """The agent's own words, shown to people as such. None if there are none.

    Raises:
        MisuseError: one of them is no text, or too long.
    """
    said = {"purpose": purpose, "reasoning": reasoning, "on_behalf_of": on_behalf_of}
    said = {name: value for name, value in said.items() if value not in (None, "")}
    for name, value in said.items():
        if isinstance(value, str):
            require_utf8(name, value)
    try:
        return Claimed.model_validate(said) if said else None
    except ValidationError as error:
        wrong = error.errors(include_input=False, include_url=False)[0]
        raise MisuseError(f"{wrong['loc'][0]}: {wrong['msg']}") from None


_KEY_BYTES: Final = 16


def transaction(
    key: str | None = None,
    *,
    wait: float = 0.0,
    independent: bool = False,
    purpose: str | None = None,
    reasoning: str | None = None,
    on_behalf_of: str | None = None,
    accept_edits: bool | Callable[[Proposal], bool] = False,
    on_question: OnQuestion | None = None,
    dry_run: bool = False,
    isolation: Abort | Serialize = ABORT,
    runtime: Runtime | None = None,
) -> Transaction:
    """Open one step of an agent: `with transaction(key="ticket-4711"): ...`, or `async with`. Inside another one, `with
    transaction():` is a savepoint: if it raises, its block is rolled back and the outer one continues.

    `key` names the step; the same key is the same step, from any process. Without a key it is random and cannot be
    found again. `wait`: how many seconds leaving the block may wait for people. `independent`: every staged effect
    commits on its own. `purpose`, `reasoning` and `on_behalf_of` are shown to people as the agent's own words.
    `on_question(question)` answers reviewers' questions meanwhile, with text, or None to leave the question open.

    A reviewer may propose other arguments instead of denying a call. `accept_edits=True` accepts every such change
    and fires with it; a function receives each `Proposal` and accepts it by returning True. Otherwise only the
    staged arguments are ever fired: if this agent's owner has accepted a change, leaving the block raises `Edited`.

    With `dry_run` nothing is fired, kept or journaled, except calls to models, which are made and counted. Live work
    is undone when the block ends. `.result` holds the policy's decision for each staged call and the changes of live
    calls.

    `isolation` controls concurrent work on the same resources (live/isolation.py). `Abort()` raises
    `IsolationConflict` if others changed what live effects read; `Serialize(timeout_seconds=30)` first waits for
    other such blocks.

    Raises:
        MisuseError: the key or a claim is no text or too long, `wait` is no number of seconds, `on_question` is no
            function, or `isolation` is not one for a block.
        SettingsError: no runtime was given and the environment describes none.
    """
    from countersign.process_runtime import default_runtime

    require_not_importing()
    named = f"{UNNAMED}{secrets.token_urlsafe(_KEY_BYTES)}" if key is None else require_key(key)
    require_wait(wait)
    require_isolation(isolation, reruns=False)
    if independent and isinstance(isolation, Serialize):
        raise MisuseError(
            "transaction(independent=True) has no live effects, so it has nothing to serialize; leave isolation out"
        )
    claimed = build_claimed(purpose, reasoning, on_behalf_of)
    said = (key, wait, independent, claimed, accept_edits, on_question, dry_run, isolation != ABORT)
    rehearsal: Simulation[Any] | None = None
    if dry_run:
        from countersign.simulation.dry_run import DryRunSimulation  # imported only when used

        rehearsal = DryRunSimulation(named)
    outer = open_transaction()  # an inner block shares its runtime, also in a replay
    return Transaction(
        runtime or (outer._runtime if isinstance(outer, Transaction) else default_runtime()),
        named,
        CommitOptions(wait, claimed, accept_edits, QuestionResponder(on_question)),
        independent=independent,
        plain=not any(said),
        rehearsal=rehearsal,
        isolation=isolation,
    )


def require_isolation(isolation: object, *, reruns: bool) -> None:
    """Refuse an invalid policy, or one that is not allowed here.

    Raises:
        MisuseError: naming what to write.
    """
    if not isinstance(isolation, Abort | Retry | Serialize):
        raise MisuseError(
            f"isolation={isolation!r} is not a policy; write isolation=Abort(), Retry(attempts=3) or "
            "Serialize(timeout_seconds=30)"
        )
    if isinstance(isolation, Retry) and not reruns:
        raise MisuseError(
            "a `with` block cannot be run again by the transaction it belongs to; put the body into a function and "
            f"write run_transaction(step, key=..., isolation=Retry(attempts={isolation.attempts}))"
        )
