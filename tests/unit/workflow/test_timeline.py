"""Timeline texts: audit rows as sentences for people, without internal names of causes and outcomes."""

from typing import Any

import pytest

from countersign.contract import canonicalize
from policy_service.pap.bundle import Bundle
from policy_service.queries.review_models import EventLine
from policy_service.queries.timeline import event_line
from policy_service.storage.system_tables import AuditRow
from tests.fakes.bundles import NOW, PERMIT_ALL, BundleFolder


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    return BundleFolder(tmp_path_factory.mktemp("bundle")).policies(PERMIT_ALL).load()


def line_of(bundle: Bundle, kind: str, body: dict[str, Any], actor: str = "service") -> EventLine:
    row = AuditRow(audit_id="a1", kind=kind, actor=actor, body=canonicalize(body), at=NOW)
    line = event_line(bundle, row, {"https://id.example|00u1": "Maya Lind"})
    assert line is not None
    return line


NAMES = {
    "person:https://id.example|00u1": "Maya Lind",
    "person:https://id.example|00u2": "https://id.example|00u2",
    "agent:desk": "desk",
    "service": "service",
}


def test_people_are_shown_with_their_sign_in_names(bundle: Bundle) -> None:
    assert {actor: line_of(bundle, "effect_fired", {}, actor).actor for actor in NAMES} == NAMES


REQUIRES = "the policy requires approval"
DECISIONS = {
    ("submit", "release"): "The policy releases it without approval",
    ("submit", "review"): "The policy requires approval",
    ("submit", "deny"): "The policy forbids it",
    ("compensate", "release"): "The policy releases it without approval",
    ("vote", "review"): f"Evaluated again after the vote, {REQUIRES}",
    ("vote", "deny"): "Evaluated again after the vote, the policy forbids it",
    ("activation", "review"): f"Evaluated again under a new bundle, {REQUIRES}",
    ("redeem", "review"): f"Evaluated again before redemption, {REQUIRES}",
    ("renew", "deny"): "Evaluated again for a renewal, the policy forbids it",
}


@pytest.mark.parametrize(("asked", "text"), DECISIONS.items(), ids=list(map(", ".join, DECISIONS)))
def test_decisions_are_sentences(bundle: Bundle, asked: tuple[str, str], text: str) -> None:
    body = {"cause": asked[0], "outcome": asked[1], "bundle": "9f3c1ab0" + "0" * 56}
    assert line_of(bundle, "decision_made", body).text == f"{text} (bundle 9f3c1ab0)"


# Audit rows, and a part of their text.
HAPPENED: list[tuple[str, dict[str, Any], str]] = [
    ("effect_withdrawn", {"why": "sibling"}, "Withdrawn: another effect of its transaction ended"),
    ("effect_withdrawn", {"why": "superseded"}, "Withdrawn: a newer revision replaced it"),
    ("effect_withdrawn", {"why": "withdrawn"}, "Withdrawn by its agent"),
    ("vote_recorded", {"verdict": "approve"}, "Voted to approve"),
    ("vote_recorded", {"verdict": "deny", "late": True}, "too late"),
    ("vote_strengthened", {"step_up": "passkey"}, "passkey"),
    ("effect_unknown", {"why": "restored"}, "may have fired since"),
    ("effect_unknown", {"why": "recalled"}, "may have fired since"),
    ("effect_unknown", {"why": "not_reported"}, "We do not know"),
    ("redemption_recalled", {}, "proves that it was redeemed"),
    ("effect_submitted", {"to": "unknown"}, "known again"),
    ("decision_made", {"cause": "recalled"}, "its decision is lost"),
]


@pytest.mark.parametrize(("kind", "body", "words"), HAPPENED)
def test_audit_rows_are_sentences(bundle: Bundle, kind: str, body: dict[str, Any], words: str) -> None:
    text = line_of(bundle, kind, body).text
    assert text == words if kind == "effect_withdrawn" else words in text
    assert "too late" not in text or body.get("late")
