"""Signing keys change without anybody noticing, or at once when one was in wrong hands."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from policy_service.tokens.keys import NEXT, read_keys, rotate_keys
from tests.fakes.operated import environment, free_port
from tests.fakes.payments import Payments
from tests.fakes.world import running
from tests.integration.service.effects import refund
from tests.integration.service.test_operator import verb

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("compromised", [False, True])
async def test_a_rotation_is_not_felt_unless_the_key_was_in_wrong_hands(
    tmp_path: Path, compromised: bool
) -> None:
    """K: what the old key signed is spent after the restart; after a compromise only what is signed anew."""
    async with running(tmp_path / "data") as world:
        agent = await world.agent()
        view = (await agent.submit(await refund(world))).json()
        tokens = (await agent.release(view)).json()["releases"]
    folder = tmp_path / "data" / "keys"
    rotate_keys(folder, now=time.time() + 3_600, compromised=compromised)
    async with running(tmp_path / "data") as world:
        agent.http, agent.nonce = world.http, ""
        answer = await agent.redeem(tokens)
        assert answer.status_code == (400 if compromised else 200), answer.text
        if compromised:
            assert (await agent.spend(view))["redeemed"] is True


def test_the_command_refuses_haste_and_prints_the_thumbprints_that_agents_pin(tmp_path: Path) -> None:
    env = environment(tmp_path / "data", Payments(tmp_path / "bundle").path, free_port())
    verb(env, "init")
    code, said = verb(env, "issuer-keys")
    ring = read_keys(tmp_path / "data/keys")
    assert (code, said.strip()) == (0, ",".join(key.kid for key in ring.published))
    assert said.startswith(ring.current.public.kid) and len(ring.published) == 2
    os.utime(tmp_path / "data/keys" / NEXT, (time.time(),) * 2)  # a file system may have another clock
    code, said = verb(env, "rotate-keys")
    assert code == 1 and "verifiers keep key sets for a while" in said
    assert verb(env, "rotate-keys", "--compromised")[0] == 0
