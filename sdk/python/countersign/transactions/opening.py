"""`transaction(...)`: what a program may say of a step, checked before it begins."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from countersign.commit.answering import Answering, OnQuestion
from countersign.commit.terms import Terms
from countersign.errors import UNNAMED, MisuseError
from countersign.errors.reasons import Proposal
from countersign.live.isolation import ABORT, Abort, Serialize, require_isolation
from countersign.tools.current import open_transaction, require_running
from countersign.transactions.saying import claimed_of, require_key, require_wait
from countersign.transactions.transaction import Transaction

if TYPE_CHECKING:
    from countersign.rehearsal.stage import Rehearsal
    from countersign.runtime import Runtime

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
    """Open one step of an agent: `with transaction(key="ticket-4711"): ...`, or `async with`. Inside another one,
    `with transaction():` is a savepoint of it: left by an exception, nothing of the block stands, the outer goes on.

    `key` names the step; the same key is the same step, from any process. Without one it is random and cannot
    be found again. `wait`: how many seconds leaving the block may wait for people. `independent`: every
    staged effect stands alone. `purpose`, `reasoning` and `on_behalf_of` are shown to people as the agent's
    own words. `on_question(question)` answers what they ask meanwhile, with text, or None to leave it open.

    A reviewer may propose other arguments instead of denying a call. `accept_edits=True` takes every such change and
    fires with it; a function is shown each `Proposal` and takes it by returning True. Otherwise nothing but what was
    staged is ever fired: where this agent's owner has accepted a change, leaving the block raises `Edited`.

    With `dry_run` nothing is fired, kept or journaled but calls to models, which are made and counted: live work is
    undone when the block ends, and `.result` tells what the policy would say to each staged call, and what the live
    ones would change.

    `isolation` says what is done about others who work on the same resources (live/isolation.py): `Abort()` stops with
    `Moved` if they changed what live effects saw; `Serialize(timeout_seconds=30)` first waits for other such blocks.

    Raises:
        MisuseError: the key or a claim is no text or too long, `wait` is no number of seconds, `on_question` is no
            function, or `isolation` is none of a block.
        SettingsError: no runtime was given and the environment describes none.
    """
    from countersign.runtime import default_runtime

    require_running()
    named = f"{UNNAMED}{secrets.token_urlsafe(_KEY_BYTES)}" if key is None else require_key(key)
    require_wait(wait)
    require_isolation(isolation, reruns=False)
    if independent and isinstance(isolation, Serialize):
        raise MisuseError(
            "transaction(independent=True) has no live effects, so it has nothing to serialize; leave isolation out"
        )
    claimed = claimed_of(purpose, reasoning, on_behalf_of)
    said = (key, wait, independent, claimed, accept_edits, on_question, dry_run, isolation != ABORT)
    outer = open_transaction()  # whose runtime an inner block has, also where that is a replay's
    return Transaction(
        runtime or (default_runtime() if outer is None else outer._runtime),
        named,
        Terms(wait, claimed, accept_edits, Answering(on_question)),
        independent=independent,
        plain=not any(said),
        rehearsal=_dry(named) if dry_run else None,
        isolation=isolation,
    )


def _dry(key: str) -> Rehearsal[Any]:
    from countersign.rehearsal.dry_run import DryRehearsal  # only those who rehearse load it

    return DryRehearsal(key)
