"""The SDK without an enrolled key: a platform's token in a file, a key in memory."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from countersign import Runtime, ServiceRefused, Settings, SettingsError, ToolRegistry, tool, transaction
from countersign.clock import SystemClock
from policy_service.storage.core import table
from policy_service.storage.credential_tables import AgentKeyRow
from tests.counterparts import node
from tests.fakes.listening import Listening
from tests.fakes.world import SUPPORT_BUNDLE

SUBJECT = "system:serviceaccount:shop:desk"


class Later(SystemClock):
    """This host's clock, moved on."""

    ahead = 0.0

    def wall(self) -> float:
        return super().wall() + self.ahead


@dataclass
class Pod:
    """A workload: the service it asks, and the token its platform keeps fresh."""

    service: Listening
    factory: node.TokenFactory
    token: Path
    clock: Later = field(default_factory=Later)
    refunds: list[str] = field(default_factory=list)

    def put_token(self, *, life: int = 600, **claims: Any) -> None:
        now = int(time.time())
        said = {"sub": SUBJECT, "aud": self.service.url, "iat": now, "nbf": now, "exp": now + life, **claims}
        self.token.write_text(self.factory.sign(said) + "\n")

    def runtime(self) -> Runtime:
        registry = ToolRegistry()

        @tool("refund", resource=("Account", "customer"), registry=registry)
        def refund(payment_id: str, amount_cents: int, currency: str, customer: str, reason: str) -> str:
            """Give money back."""
            self.refunds.append(payment_id)
            return f"r-{payment_id}"

        self.refund = refund
        settings = Settings(
            url=self.service.url, agent="desk", key_path=None, token_path=self.token,
            journal_path=self.token.parent / "journal.db", allow_dev=True,
        )  # fmt: skip
        return Runtime(settings, registry=registry, clock=self.clock)

    def pay_back(self, runtime: Runtime, payment: str) -> None:
        with transaction(f"ticket-{payment}", runtime=runtime):
            self.refund(payment, 1_200, "USD", "cus_1001", "late delivery")

    def keys(self) -> list[Any]:
        query = table(AgentKeyRow).select()
        return self.service.do(lambda world: world.service.db.read(lambda conn: list(conn.execute(query))))


@pytest.fixture
def pod(tmp_path: Path, factory: node.TokenFactory) -> Iterator[Pod]:
    rules = [{"agent": "desk", "claims": {"sub": SUBJECT}}]
    issuer = {"name": "cluster", "issuer": factory.issuer, "agents": rules}
    with Listening(tmp_path / "data", SUPPORT_BUNDLE, trusted_issuers=[issuer]) as service:
        service.do(lambda w: w.operator("agent-enroll", {"name": "desk", "roles": ["support-agent"]}))
        yield Pod(service, factory, tmp_path / "token")


def test_another_process_brings_its_own_key_and_finds_the_same_work(pod: Pod) -> None:
    pod.put_token()
    with pod.runtime() as runtime:
        pod.pay_back(runtime, "pay_1")
        pod.pay_back(runtime, "pay_2")
    assert (pod.refunds, len(pod.keys())) == (["pay_1", "pay_2"], 1)
    with pod.runtime() as runtime:
        pod.pay_back(runtime, "pay_1")
    assert (pod.refunds, len(pod.keys())) == (["pay_1", "pay_2"], 2)


def test_the_token_is_read_again_before_the_key_ends(pod: Pod) -> None:
    """Half of the key's life is the reserve for a platform or a service that is away."""
    pod.put_token(life=600)
    with pod.runtime() as runtime:
        pod.pay_back(runtime, "pay_1")
        pod.put_token(life=1_200, jti="the next one")
        assert runtime._brought is not None
        for ahead, due in ((290.0, False), (310.0, True), (0.0, False)):
            pod.clock.ahead = ahead
            assert runtime._brought.due is due
        runtime._brought._renew_at = 0.0
        pod.pay_back(runtime, "pay_2")
    (row,) = pod.keys()
    assert row.expires_at.timestamp() > time.time() + 900


def test_a_file_without_a_token_that_vouches_is_named(pod: Pod) -> None:
    for content in (None, b"", b"  \n", b"\xff\xfe", b"a" * 20_000):
        if content is not None:
            pod.token.write_bytes(content)
        with pod.runtime() as runtime, pytest.raises(SettingsError, match="token"):
            pod.pay_back(runtime, "pay_1")
    pod.put_token(sub="system:serviceaccount:shop:another")
    with pod.runtime() as runtime, pytest.raises(ServiceRefused, match="COUNTERSIGN_TOKEN_FILE"):
        pod.pay_back(runtime, "pay_1")
    assert pod.refunds == []


def test_the_settings_name_a_key_or_a_token(tmp_path: Path) -> None:
    env = {"COUNTERSIGN_URL": "http://127.0.0.1:1", "COUNTERSIGN_AGENT": "desk", "COUNTERSIGN_JOURNAL": "j"}
    assert Settings.from_env(env | {"COUNTERSIGN_TOKEN_FILE": "/t"}).token_path == Path("/t")
    for both in ({}, {"COUNTERSIGN_TOKEN_FILE": "/t", "COUNTERSIGN_KEY": "/k"}):
        with pytest.raises(SettingsError, match="one of the two"):
            Settings.from_env(env | both)
