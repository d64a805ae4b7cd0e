"""What the journal says of a step, held against the world by somebody who took no part."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from countersign.journal import Journal
from tests.crash.alone import place_in

DONE = {"fired", "compensating", "compensation_failed"}
NOT_DONE = set("staged review released denied expired withdrawn revoked redeemed failed unused".split())
IN_FORCE = {"frozen", "review", "ready", "redeemed", "unsettled"}  # others may go on with a list that is


@dataclass(frozen=True)
class Account:
    """The state of a step, and of each of its effects by the name the world has for it."""

    state: str
    effects: tuple[tuple[str, str], ...] = ()

    @property
    def states(self) -> set[str]:
        """Those of the effects."""
        return {state for _, state in self.effects}

    @property
    def says_all_done(self) -> bool:
        """Whether there is nothing that did not happen."""
        return self.state == "settled" and self.states <= {"fired"}

    @property
    def says_undone(self) -> bool:
        """Whether it is over, and nothing of it remains."""
        return self.state in {"settled", "ended"} and not self.says_all_done


def account_of(folder: Path, key: str) -> Account:
    """As the journal of this machine has it now."""
    with closing(Journal(place_in(folder))) as opened:
        found = opened.transactions.find(key)
        if not found:
            return Account("none")
        rows = opened.transactions.effects(found[0]) if found[0].staging else ()
        effects = tuple((act_of(one.tool, one.frozen().args), one.state.value) for one in rows)
        return Account(found[0].state.value, effects)


def act_of(name: str, args: dict[str, Any]) -> str:
    """What the world's log says of an effect."""
    amount = f"/{args['amount_cents']}" if "amount_cents" in args else ""
    return f"{name}{amount}:{args['order_id']}"


def done_forward(world: Sequence[str]) -> set[str]:
    """What was done, whether or not it was taken back."""
    return {one for one in world if not one.startswith("void")}


def taken_back(world: Sequence[str]) -> set[str]:
    """What was done and undone again."""
    return {one.replace("void", "charge") for one in world if one.startswith("void")}


def require_true(said: Account, world: Sequence[str], live: Sequence[object]) -> None:
    """What the journal calls done happened, what it calls not done did not, and what it calls over and undone has
    left nothing.
    """
    context = f"{said}, {world}, live {live}"
    for name, state in said.effects:
        if state in DONE:
            assert name in world, context
        if state == "compensated":
            assert {name, name.replace("charge", "void")} <= {*world}, context
        if state in NOT_DONE:
            assert name not in world, context
    if said.says_undone:
        assert done_forward(world) == taken_back(world), context
        assert not live, context
