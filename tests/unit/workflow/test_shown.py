"""The view digest: it changes with everything a person reads, and with nothing else."""

import hashlib
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from countersign.contract import canonicalize
from policy_service.queries import view_digest
from policy_service.queries.effects import Piece
from policy_service.queries.review_models import EventLine, ReviewPage, RuleChange
from policy_service.queries.view_digest import (
    API_RENDERER,
    BATCH_RENDERER,
    WEB_RENDERER,
    RenderedView,
    folded_args,
    view_of,
    views_for_channel,
)
from tests.fakes import reviews

PAGE = reviews.deploy()
GATE, FACT = PAGE.gates[0], PAGE.facts[0]


def labelled_digest(material: bytes) -> str:
    return hashlib.sha256(b"countersign/view/v1\n" + material).hexdigest()


OTHER_RULES: list[dict[str, Any]] = [{"cedar_text": "forbid (principal, action, resource);"}, {"quorum": 1}]
OTHER_RULES += [{"groups": ("interns",)}, {"step_up": "passkey"}, {"doc": "Go ahead."}]
ARGUMENT, *OTHERS = PAGE.args
OTHER_ARGUMENTS = ({"value_text": "other"}, {"type_text": "secret"}, {"secret": True})
READ: list[dict[str, Any]] = [
    *({name: "another"} for name in ("finality", "risk", "tool_title", "agent", "agent_owner", "review_id")),
    *({name: "0" * 64} for name in ("effect_digest", "txn_digest")),
    *({"gates": (replace(GATE, **change),)} for change in OTHER_RULES),
    {"gates": (GATE, replace(GATE, policy_id="more"))},
    *({"facts": (replace(FACT, **change),)} for change in ({"value": "frozen"}, {"source": "the agent"})),
    *({"args": (replace(ARGUMENT, **change), *OTHERS)} for change in OTHER_ARGUMENTS),
    *({"args": PAGE.args[::-1]}, {"rev": 9}, {"sentence": (Piece("Deploy nothing."),)}),
    *({"warnings": ("UNKNOWN TOOL",)}, {"claimed": {"reasoning": "Because."}}),
    {"siblings": reviews.refund().siblings},
]


@pytest.mark.parametrize("changes", READ)
def test_the_digest_covers_everything_shown(changes: dict[str, Any]) -> None:
    assert view_of(replace(PAGE, **changes), WEB_RENDERER).digest != view_of(PAGE, WEB_RENDERER).digest


MOVES: dict[str, dict[str, Any]] = {
    "a vote came in": {"votes": ()},
    "a gate counts one more": {"gates": (replace(GATE, have=2),)},
    "time passed": {"facts": (replace(FACT, age=timedelta(hours=9)),)},
    "something happened": {"timeline": (EventLine(PAGE.opened_at, "vote_recorded", "Voted", "Maya"),)},
    "it settled": {"state": "met", "effect_state": "released"},
    "another person reads": {"why_not": "you own it", "my_verdict": "approve", "step_up": "asked"},
    "another commit says the same": {"commit": "abcdef0", "bundle": "0" * 64},
    "the same rules were asked again": {"rule_changes": (RuleChange(PAGE.opened_at, "a", "b", "nothing"),)},
    "it is late": {"answer_by": PAGE.opened_at},
}


@pytest.mark.parametrize("changes", MOVES.values(), ids=MOVES)
def test_the_digest_ignores_what_changes_by_itself(changes: dict[str, Any]) -> None:
    assert view_of(replace(PAGE, **changes), WEB_RENDERER).digest == view_of(PAGE, WEB_RENDERER).digest


def test_the_digest_covers_the_renderer() -> None:
    """The state of a sibling is not covered."""
    page = reviews.refund()
    moved = replace(page, siblings=tuple(replace(one, state="released") for one in page.siblings))
    assert view_of(moved, WEB_RENDERER).digest == view_of(page, WEB_RENDERER).digest
    views = [view_of(page, WEB_RENDERER, full=full) for full in (False, True)]
    assert len({view.digest for view in (*views, view_of(page, API_RENDERER))}) == 3
    assert folded_args(view_of(page, WEB_RENDERER)) == ["memo"]
    assert folded_args(views[1]) == folded_args(view_of(page, API_RENDERER)) == []


def test_folded_arguments_exclude_a_review_from_a_batch() -> None:
    """A batch never shows such arguments, so no vote can be cast on them there."""
    for page, in_a_batch in ((reviews.refund(), False), (reviews.credit(1), True)):
        digests = {view.digest for view in views_for_channel(page, "web")}
        assert (view_of(page, BATCH_RENDERER, full=True).digest in digests) is in_a_batch


def test_the_material_contains_no_secret() -> None:
    material = view_of(PAGE, WEB_RENDERER).canonical
    assert view_of(PAGE, WEB_RENDERER).digest == labelled_digest(material)
    row = next(row for row in PAGE.args if row.secret)
    assert row.value_text not in material.decode()
    other = tuple(replace(one, value_text="x" * one.bytes) if one.secret else one for one in PAGE.args)
    assert view_of(replace(PAGE, args=other), WEB_RENDERER).digest == view_of(PAGE, WEB_RENDERER).digest


def test_parts_name_what_changed_and_unknown_parts_are_ignored() -> None:
    page = reviews.refund()
    view = view_of(page, WEB_RENDERER)
    assert view.moved(view.parts) == []
    warned: ReviewPage = replace(page, warnings=("careful",), claimed={})
    assert view_of(warned, WEB_RENDERER).moved(view.parts) == ["the warnings", "the agent's claims"]
    for parts in ("", "nonsense", "other=1 =2"):
        assert view_of(warned, WEB_RENDERER).moved(parts) == []


def test_a_view_of_an_older_renderer_keeps_its_digest() -> None:
    """Verification hashes the stored material, so exported votes stay valid; new votes need the new page."""
    material = dict(view_of(PAGE, WEB_RENDERER).material)
    older = RenderedView(material | {"drawn": {"renderer": "web/1", "folded": []}})
    assert older.digest == labelled_digest(canonicalize(dict(older.material)))
    assert folded_args(older) == []
    assert older.digest not in {view.digest for view in views_for_channel(PAGE, "web")}


# Bytes and lines count; padding that is not shown does not.
LONG = ["x" * 321, "\u00e9" * 161, "a\n" * 6 + "a"]
SHORT = ["x" * 320, "a\n" * 5 + "a", "a" + "\n" * 64 + "b", ""]


def test_a_long_text_is_folded() -> None:
    assert [text for text in LONG + SHORT if view_digest.is_long(text)] == LONG
    assert view_digest.line_count("a\nb") == 2
