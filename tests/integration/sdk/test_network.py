"""The real service behind a network that fails: the SDK fires nothing it has no receipt for, keeps what it staged, and
goes on when the network is back. A network that is only broken makes an effect late, never double.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from countersign import Runtime, ServiceRefused, ServiceUnavailable, Transaction, resume, transaction
from countersign.contract import EffectState, PrivateKey
from countersign.settings import Settings
from tests.fakes.desk import notes_database, write_key
from tests.fakes.flaky import FAULTS, Flaky
from tests.fakes.listening import Listening
from tests.integration.sdk.conftest import Tools, reviewed_bundle

AGENT = "support"
PATIENCE_S = 0.4
DONE = [("refund", "o-1", 100)]
TRANSACTIONS, KEYS, OUTCOMES = "/v1/transactions", "/.well-known", "/v1/outcomes"


@pytest.fixture(scope="module")
def line(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Flaky, PrivateKey]]:
    """The service behind the proxy, and the key of its one agent."""
    folder = tmp_path_factory.mktemp("line")
    bundle = reviewed_bundle(folder)
    with Flaky() as proxy, Listening(folder / "data", bundle, public_url=proxy.url) as service:
        proxy.service = service.url.removeprefix("http://")
        yield proxy, service.do(lambda world: world.agent(AGENT)).key


@dataclass
class Post:
    """One agent process at the end of the line."""

    proxy: Flaky
    tools: Tools
    runtime: Runtime


@pytest.fixture
def post(line: tuple[Flaky, PrivateKey], tmp_path: Path) -> Iterator[Post]:
    (proxy, key), tools = line, Tools(notes_database(tmp_path))
    settings = Settings(
        url=proxy.url, agent=AGENT, key_path=write_key(tmp_path / "agent.pem", key),
        journal_path=tmp_path / "journal.db", connect_seconds=PATIENCE_S, read_seconds=PATIENCE_S,
        retries=1, retry_base_seconds=0.01,
    )  # fmt: skip
    with Runtime(settings, registry=tools.registry) as runtime:
        yield Post(proxy, tools, runtime)
    proxy.lift()


def step(post: Post, key: str) -> Transaction:
    with transaction(key, runtime=post.runtime) as txn:
        post.tools.refund("o-1", 100)
    return txn


@contextmanager
def soon() -> Iterator[None]:
    """It does not take much longer than one answer is waited for."""
    began = time.monotonic()
    yield
    assert time.monotonic() - began < 20 * PATIENCE_S


@pytest.mark.parametrize("forwards", [False, True], ids=["lost on the way there", "lost on the way back"])
@pytest.mark.parametrize("how", FAULTS)
def test_a_lost_submission_fires_nothing_until_repeated(
    post: Post, how: str, forwards: bool, key: str
) -> None:
    post.proxy.breaks(TRANSACTIONS, how, forwards=forwards)
    with soon(), pytest.raises(ServiceUnavailable, match="Nothing was fired"):
        step(post, key)
    assert post.tools.done == []
    post.proxy.lift()
    for _ in range(2):
        step(post, key)
        assert post.tools.done == DONE


@pytest.mark.parametrize("how", FAULTS)
def test_without_the_keys_of_the_service_nothing_is_believed(post: Post, how: str, key: str) -> None:
    """The receipt is here, and what would verify it is not: it is spent, and fires when the keys can be had."""
    post.proxy.breaks(KEYS, how)
    with pytest.raises(ServiceUnavailable):
        step(post, key)
    assert post.tools.done == []
    post.proxy.lift()
    assert [one.after for one in resume(post.runtime)] == ["settled"]
    assert post.tools.done == DONE


@pytest.mark.parametrize("how", FAULTS)
def test_a_lost_report_is_sent_later_and_nothing_fires_again(post: Post, how: str, key: str) -> None:
    post.proxy.breaks(OUTCOMES, how, forwards=True)
    txn = step(post, key)
    assert post.tools.done == DONE
    post.proxy.lift()
    resume(post.runtime)
    view = post.runtime.client().view(txn.txn)
    assert [one.state for one in view.effects] == [EffectState.FIRED]
    assert (post.runtime.journal.outbox.pending(), post.tools.done) == ([], DONE)


@pytest.mark.anyio
async def test_an_async_agent_does_not_wait_for_an_answer_that_drips_either(post: Post) -> None:
    post.proxy.breaks(TRANSACTIONS, "drips")
    with soon(), pytest.raises(ServiceUnavailable, match="not complete"):
        async with transaction("async", runtime=post.runtime):
            await post.tools.send("o-1")
    assert post.tools.done == []


REWRITTEN: dict[str, Callable[[str, bytes], bytes]] = {
    "spaces more": lambda _, body: body.replace(b'":', b'": ') if body else body,
    "another number": lambda _, body: body.replace(b"100", b"1.0e2"),
    "cut": lambda _, body: body[:-1],
    "a byte more": lambda _, body: body + b"\n" if body else body,
}


@pytest.mark.parametrize("rewrite", REWRITTEN.values(), ids=REWRITTEN)
def test_a_rewritten_body_is_refused(post: Post, rewrite: Callable[[str, bytes], bytes], key: str) -> None:
    post.proxy.rewrite = rewrite
    with pytest.raises(ServiceRefused, match="bad_proof"):
        step(post, key)
    assert post.tools.done == []
