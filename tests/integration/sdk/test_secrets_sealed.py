"""A secret in front of the real service: people approve it unseen, it fires, is taken back, and no journal holds it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from countersign import (
    EffectFailed,
    JournalSealed,
    NotDone,
    Placeholder,
    ReviewPending,
    Runtime,
    Settings,
    ToolRegistry,
    current_effect,
    resume,
    tool,
    transaction,
)
from countersign.journal.place import JournalPlace
from countersign.journal.sealing_keys import add_key
from countersign.manifests.drafting import manifest_json
from examples.local_service import LocalService, free_port
from examples.person import Person
from tests.fakes.local_service import WarmService
from tests.house.repository import ROOT
from tests.integration.sdk.conftest import ROLE
from tests.unit.sdk.hunting import SECRET, everything_of, found_in
from tests.unit.sdk.journals import BOTH, journal_database, place, server

pytestmark = pytest.mark.long

__all__ = ["journal_database", "place", "server"]

POLICY = """
@id("clerks-may-act")
permit (principal in Role::"support-agent", action, resource);

@id("large-needs-finance") @approval("finance")
forbid (principal, action == Action::"pay", resource)
when { context.input.amount_cents > 5000 };
"""


@dataclass
class Shop:
    """The tools of this shop, and what reached them."""

    registry: ToolRegistry = field(default_factory=ToolRegistry)
    done: list[tuple[Any, ...]] = field(default_factory=list)

    def __post_init__(self) -> None:
        @tool("unpay", resource=("Card", "card"), registry=self.registry)
        def unpay(card: str, payment: str) -> str:
            """Give it back."""
            self.done.append(("unpay", card, payment))
            return f"back to {card}"

        @tool(
            "pay",
            resource=("Order", "order_id"),
            secret=["card"],
            compensate="unpay",
            compensation_map={"card": "args:/card", "payment": "result:/payment"},
            registry=self.registry,
        )
        def pay(order_id: str, amount_cents: int, card: str) -> dict[str, str]:
            """Pay an order."""
            assert current_effect().tool == "pay"
            self.done.append(("pay", order_id, amount_cents, card))
            return {"payment": f"p-{card}"}

        @tool("ship", resource=("Order", "order_id"), secret=["door_code"], registry=self.registry)
        def ship(order_id: str, door_code: str) -> None:
            """Send it."""
            raise NotDone(f"no door opens with {door_code}")

        self.pay, self.ship = pay, ship


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalService]:
    folder = tmp_path_factory.mktemp("shop")
    bundle = folder / "bundle"
    (bundle / "tools").mkdir(parents=True)
    (bundle / "shop.cedar").write_text(POLICY)
    (bundle / "groups.toml").write_bytes((ROOT / "policies" / "groups.toml").read_bytes())
    for one in Shop().registry:
        (bundle / "tools" / f"{one.name}.json").write_bytes(manifest_json(one.draft_manifest()))
    with WarmService(folder / "service", bundle, port=free_port()) as served:
        yield served


@pytest.fixture(params=BOTH)
def engine(request: pytest.FixtureRequest) -> str:
    chosen: str = request.param
    return chosen


@pytest.fixture(scope="module")
def enrolled(service: LocalService) -> Settings:
    return service.enroll("clerk", ROLE)


@pytest.fixture
def settings(enrolled: Settings, place: JournalPlace, tmp_path: Path) -> Settings:
    add_key(tmp_path / "keys")
    return replace(enrolled, journal_path=place, journal_key_path=tmp_path / "keys", retry_base_seconds=0.01)


def approve(service: LocalService, pending: ReviewPending) -> None:
    (review,) = pending.reviews
    assert review.url is not None
    with Person(service.url) as maya:
        maya.sign_in(service.sign_in_link("maya"))
        maya.approve(review.url, "looks right")


def test_what_people_approved_unseen_fires_from_another_process_that_has_the_key(
    service: LocalService, settings: Settings, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    shop, key = Shop(), str(request.node.name)
    with Runtime(settings, registry=shop.registry) as runtime:
        with pytest.raises(ReviewPending) as pending, transaction(key, runtime=runtime):
            shop.pay("o-1", 90_000, SECRET)
        approve(service, pending.value)
        with Runtime(replace(settings, journal_key_path=tmp_path / "none"), registry=shop.registry) as poor:
            (seen,) = resume(poor)
        assert "COUNTERSIGN_JOURNAL_KEY" in seen.note
        assert shop.done == []
        with Runtime(settings, registry=shop.registry) as later:
            (seen,) = resume(later)
        assert (seen.after, shop.done) == ("settled", [("pay", "o-1", 90_000, SECRET)])
        with transaction(key, runtime=runtime) as again:
            paid: Placeholder[dict[str, str]] = shop.pay("o-1", 90_000, SECRET)
        assert (again.replayed, paid.result) == (True, {"payment": f"p-{SECRET}"})
        assert len(shop.done) == 1
        assert found_in(everything_of(settings.journal_path)) == []


def test_what_is_taken_back_is_built_from_the_secret_on_both_sides_and_stands_in_no_journal(
    service: LocalService, settings: Settings, request: pytest.FixtureRequest
) -> None:
    shop, key = Shop(), str(request.node.name)
    with Runtime(settings, registry=shop.registry) as runtime:
        with pytest.raises(EffectFailed) as failed, transaction(key, runtime=runtime):
            shop.pay("o-1", 100, SECRET)
            shop.ship("o-1", SECRET)
        assert shop.done == [("pay", "o-1", 100, SECRET), ("unpay", SECRET, f"p-{SECRET}")]
        assert failed.value.outcomes == {"pay#1": "compensated", "ship#2": "failed"}
        view = runtime.client().view(failed.value.txn)
        assert [one.state.value for one in view.effects] == ["compensated", "failed"]
        assert runtime.journal.outbox.pending() == []
        assert found_in(everything_of(settings.journal_path) | {"error": f"{failed.value!r}".encode()}) == []


def test_a_shared_journal_without_a_key_asks_nobody(
    service: LocalService, settings: Settings, request: pytest.FixtureRequest
) -> None:
    shop, key = Shop(), str(request.node.name)
    named = replace(settings, journal_key_path=Path("/nobody/put/it/here"))
    with (
        Runtime(named, registry=shop.registry) as runtime,
        pytest.raises(JournalSealed, match="COUNTERSIGN_JOURNAL_KEY"),
        transaction(key, runtime=runtime) as txn,
    ):
        shop.pay("o-1", 100, SECRET)
    assert shop.done == []
    assert runtime.journal.transactions.require(txn.txn).redeemed is False
    runtime.journal.close()
