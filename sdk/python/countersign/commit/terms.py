"""On which terms a step is to be committed: what its program said when it opened the transaction."""

from __future__ import annotations

from dataclasses import dataclass, field

from countersign.commit.answering import Answering
from countersign.commit.edits import Judge
from countersign.contract.wire import Claimed


@dataclass(frozen=True, slots=True)
class Terms:
    """`wait`: seconds that people may take in all. `claimed`: the agent's own words, for people. `accept_edits`: which
    changes of a reviewer are taken. `answering`: who answers what people ask. `keeps_approved`: what cannot be redeemed
    now stays approved for another time; else it is withdrawn.
    """

    wait: float = 0.0
    claimed: Claimed | None = None
    accept_edits: Judge = False
    answering: Answering = field(default_factory=Answering)
    keeps_approved: bool = False
