"""The story of an effect in a person's words: no name of ours for a cause or an outcome is left in them."""

from __future__ import annotations

from typing import Any

import pytest

from countersign.contract import canonicalize
from policy_service.pap.bundle import Bundle
from policy_service.storage.plumbing import AuditRow
from policy_service.workflow.pages.timeline import event_line
from tests.fakes.bundles import NOW, PERMIT_ALL, BundleFolder


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    return BundleFolder(tmp_path_factory.mktemp("bundle")).policies(PERMIT_ALL).load()


def told(bundle: Bundle, kind: str, body: dict[str, Any]) -> str:
    row = AuditRow(audit_id="a1", kind=kind, actor="service", body=canonicalize(body), at=NOW)
    line = event_line(bundle, row, {})
    assert line is not None
    return line.text


@pytest.mark.parametrize(
    ("actor", "name"),
    [
        ("person:https://id.example|00u1", "Maya Lind"),
        ("person:https://id.example|00u2", "https://id.example|00u2"),
        ("agent:desk", "desk"),
        ("service", "service"),
    ],
)
def test_somebody_is_told_by_the_name_they_signed_in_with(bundle: Bundle, actor: str, name: str) -> None:
    row = AuditRow(audit_id="a1", kind="effect_fired", actor=actor, body=canonicalize({}), at=NOW)
    line = event_line(bundle, row, {"https://id.example|00u1": "Maya Lind"})
    assert line is not None and line.actor == name


DECISIONS = {
    ("submit", "release"): "The policy lets it go without asking anybody",
    ("submit", "review"): "The policy lets it go only when people agree",
    ("submit", "deny"): "The policy forbids it",
    ("compensate", "release"): "The policy lets it go without asking anybody",
    ("vote", "review"): "Asked again after the vote, the policy lets it go only when people agree",
    ("vote", "deny"): "Asked again after the vote, the policy forbids it",
    ("activation", "review"): "Asked again under new rules, the policy lets it go only when people agree",
    ("redeem", "review"): "Asked again before it was spent, the policy lets it go only when people agree",
    ("renew", "deny"): "Asked again for more time to fire, the policy forbids it",
}


@pytest.mark.parametrize(
    ("asked", "text"), DECISIONS.items(), ids=[f"{cause}, {outcome}" for cause, outcome in DECISIONS]
)
def test_an_answer_of_the_policy_is_a_sentence(bundle: Bundle, asked: tuple[str, str], text: str) -> None:
    cause, outcome = asked
    line = told(
        bundle, "decision_made", {"cause": cause, "outcome": outcome, "bundle": "9f3c1ab0" + "0" * 56}
    )
    assert line == f"{text} (bundle 9f3c1ab0)"


WITHDRAWN = {
    "sibling": "Withdrawn: another effect of its transaction ended",
    "superseded": "Withdrawn: a newer revision replaced it",
    "withdrawn": "Taken back by its agent",
}


@pytest.mark.parametrize(("why", "text"), WITHDRAWN.items(), ids=WITHDRAWN)
def test_a_withdrawal_says_why(bundle: Bundle, why: str, text: str) -> None:
    assert told(bundle, "effect_withdrawn", {"why": why}) == text


def test_a_vote_is_told_with_what_it_was_worth(bundle: Bundle) -> None:
    assert told(bundle, "vote_recorded", {"verdict": "approve"}) == "Voted to approve"
    assert "too late" in told(bundle, "vote_recorded", {"verdict": "deny", "late": True})
    assert "passkey" in told(bundle, "vote_strengthened", {"step_up": "passkey"})


RESTORED = {
    "what was open": ("effect_unknown", {"why": "restored"}, "may have fired since"),
    "what a receipt told of": ("effect_unknown", {"why": "recalled"}, "may have fired since"),
    "what nobody reported": ("effect_unknown", {"why": "not_reported"}, "We do not know"),
    "its receipt": ("redemption_recalled", {}, "proves that it was redeemed"),
    "what was never seen": ("effect_submitted", {"to": "unknown"}, "Known again"),
    "how it was decided": ("decision_made", {"cause": "recalled"}, "what decided it is lost"),
}


@pytest.mark.parametrize(("kind", "body", "words"), RESTORED.values(), ids=RESTORED)
def test_a_restore_is_told_as_one(bundle: Bundle, kind: str, body: dict[str, Any], words: str) -> None:
    assert words in told(bundle, kind, body)
