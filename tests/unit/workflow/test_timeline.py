"""The timeline of an effect in plain sentences, without internal names of causes and outcomes."""

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


def line(bundle: Bundle, kind: str, body: dict[str, Any], actor: str = "service") -> EventLine:
    row = AuditRow(audit_id="a1", kind=kind, actor=actor, body=canonicalize(body), at=NOW)
    shown = event_line(bundle, row, {"https://id.example|00u1": "Maya Lind"})
    assert shown is not None
    return shown


IDP = "https://id.example"
NAMES = {"agent:desk": "desk", "service": "service"}
NAMES |= {f"person:{IDP}|00u1": "Maya Lind", f"person:{IDP}|00u2": f"{IDP}|00u2"}


def test_a_person_is_shown_by_their_sign_in_name(bundle: Bundle) -> None:
    assert {actor: line(bundle, "effect_fired", {}, actor).actor for actor in NAMES} == NAMES


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
def test_a_decision_is_shown_as_a_sentence(bundle: Bundle, asked: tuple[str, str], text: str) -> None:
    body = {"cause": asked[0], "outcome": asked[1], "bundle": "9f3c1ab0" + "0" * 56}
    assert line(bundle, "decision_made", body).text == f"{text} (bundle 9f3c1ab0)"


# An event, and words of its sentence.
HAPPENED: list[tuple[str, dict[str, Any], str]] = [
    ("effect_withdrawn", {"why": "sibling"}, "Withdrawn: another effect of its transaction ended"),
    ("effect_withdrawn", {"why": "superseded"}, "Withdrawn: a newer revision replaced it"),
    ("effect_withdrawn", {"why": "withdrawn"}, "Withdrawn by its agent"),
    ("vote_recorded", {"verdict": "approve"}, "Voted to approve"),
    ("vote_recorded", {"verdict": "deny", "late": True}, "too late"),
    ("vote_strengthened", {"step_up": "passkey"}, "passkey"),
    *(("effect_unknown", {"why": why}, "may have fired since") for why in ("restored", "recalled")),
    ("effect_unknown", {"why": "not_reported"}, "We do not know"),
    ("redemption_recalled", {}, "proves that it was redeemed"),
    ("effect_submitted", {"to": "unknown"}, "known again"),
    ("decision_made", {"cause": "recalled"}, "its decision is lost"),
]


@pytest.mark.parametrize(("kind", "body", "words"), HAPPENED)
def test_an_event_is_shown_as_a_sentence(bundle: Bundle, kind: str, body: dict[str, Any], words: str) -> None:
    text = line(bundle, kind, body).text
    assert text == words if kind == "effect_withdrawn" else words in text
    assert "too late" not in text or body.get("late")
