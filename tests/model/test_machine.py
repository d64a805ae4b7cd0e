"""The whole protocol against the model, on both engines, and what of it the machine reaches."""

from __future__ import annotations

import pytest

from countersign.contract import EffectState, TxnState
from countersign.contract.states import EFFECT_TRANSITIONS, TXN_TRANSITIONS
from tests.model.base import machine_on
from tests.model.governing import EverybodyActs
from tests.model.playing import LONG, Databases, play

E, T = EffectState, TxnState
SEEDS = {"sqlite": 34 if LONG else 1, "postgresql": 10 if LONG else 1}
STEPS = 60 if LONG else 30

NOT_REACHED = {
    (E.REVIEW, E.UNKNOWN): "only `policy-service restored` makes it; the Promela model has it",
    (E.RELEASED, E.UNKNOWN): "only `policy-service restored` makes it; the Promela model has it",
    (T.REVIEW, T.UNSETTLED): "only `policy-service restored` makes it",
    (T.READY, T.UNSETTLED): "only `policy-service restored` makes it",
    (E.COMPENSATION_FAILED, E.COMPENSATED): "a person settles a task; the machine's people only vote",
}
"""Moves of the tables that no rule of the machine can make, and why."""


@pytest.mark.deep
@pytest.mark.timeout(3_600 if LONG else 600)
@pytest.mark.parametrize("engine", ["sqlite", pytest.param("postgresql", marks=pytest.mark.long)])
def test_the_service_does_what_the_model_does(engine: str, databases: Databases) -> None:
    machine = machine_on(EverybodyActs, databases)
    play(machine, SEEDS[engine], STEPS)
    assert machine.moves, "it got nowhere"
    assert not LONG or (machine.moves[T.READY, T.REDEEMED] and machine.moves[E.REVIEW, E.RELEASED])


@pytest.mark.long
@pytest.mark.timeout(7_200)
@pytest.mark.parametrize("engine", ["sqlite"])
def test_every_move_of_the_tables_is_seen_or_cannot_be_made(engine: str, databases: Databases) -> None:
    machine = machine_on(EverybodyActs, databases)
    play(machine, 70, STEPS)
    tables = [*EFFECT_TRANSITIONS.items(), *TXN_TRANSITIONS.items()]
    unseen = {(frm, to) for frm, moves in tables for to in moves if not machine.moves[frm, to]}
    assert unseen - NOT_REACHED.keys() == set(), "the machine never makes these: add a rule, or say why"
    assert NOT_REACHED.keys() - unseen == set(), "these are made after all: take them from the list"
