"""Parse vote forms strictly. The workflow decides what a vote does."""

import hmac
from collections.abc import Mapping
from dataclasses import dataclass

from policy_service.channels.web.form_parser import parse_positive_int
from policy_service.channels.web.pages import PageSession
from policy_service.channels.web.presenters.review_page import DENIAL_REASONS
from policy_service.errors import ForbiddenError, InvalidRequestError
from policy_service.queries.review_context import require_text_length
from policy_service.queries.review_models import VoteVerdict as Verdict
from policy_service.workflow.passkeys.step_up import StepUpProof
from policy_service.workflow.reviews.vote import VoteInput

VOTE_FIELDS = frozenset({"verdict", "rev", "effect_digest", "txn_digest"})
OPTIONAL_VOTE_FIELDS = frozenset(
    {"reason", "pick", "seen", "view_digest", "view_parts", "nonce", "credential"}
)


def read_ballot(session: PageSession, review_id: str, fields: dict[str, str]) -> VoteInput:
    """The ballot of a form with ``VOTE_FIELDS``.

    Raises InvalidRequestError (`reason_required` among others).
    """
    verdict = _verdict(fields["verdict"])
    nonce, credential = fields.get("nonce", ""), fields.get("credential", "")
    return VoteInput(
        review_id,
        verdict,
        rev=parse_positive_int(fields, "rev"),
        effect_digest=fields["effect_digest"],
        txn_digest=fields["txn_digest"],
        reason=_reason(fields, verdict) or None,
        channel="web",
        view_digest=fields.get("view_digest") or None,
        view_parts=fields.get("view_parts", ""),
        proof=StepUpProof(nonce, credential, session.live.key) if nonce or credential else None,
    )


# What a ballot names, in the order of a batch line.
BALLOT_FIELDS = ("review_id", "rev", "effect_digest", "txn_digest", "view_digest")


@dataclass(frozen=True, slots=True)
class BatchForm:
    """One verdict on several reviews, each named with its own digests."""

    verdict: Verdict
    reason: str
    lines: tuple[dict[str, str], ...]


def batch_fields(most: int) -> frozenset[str]:
    """The checkbox names of a batch form."""
    return frozenset(f"line-{place}" for place in range(1, most + 1))


def line_value(line: object) -> str:
    """The checkbox value of one line."""
    return " ".join(str(getattr(line, name)) for name in BALLOT_FIELDS)


def read_batch(fields: dict[str, str], most: int) -> BatchForm:
    """The selected lines of a batch form.

    Raises InvalidRequestError (`reason_required` among others).
    """
    ticked = [fields[name] for place in range(1, most + 1) if (name := f"line-{place}") in fields]
    lines = tuple(_line(value) for value in ticked)
    if not lines:
        raise InvalidRequestError("no line is selected: select each line you mean")
    if len({line["review_id"] for line in lines}) != len(lines):
        raise InvalidRequestError("one review is selected twice: open the page again")
    verdict = _verdict(fields["verdict"])
    if verdict == "break_glass":
        raise InvalidRequestError("break-glass works for one review at a time, on its own page")
    words = {"reason": fields.get("note", "")} if verdict == "approve" else fields
    return BatchForm(verdict, _reason(words, verdict), lines)


def _line(value: str) -> dict[str, str]:
    parts = value.split(" ")
    if len(parts) != len(BALLOT_FIELDS):
        raise InvalidRequestError("a selected line is not valid: open the page again")
    line = dict(zip(BALLOT_FIELDS, parts, strict=True))
    parse_positive_int(line, "rev")
    return line


def require_csrf(session: PageSession, fields: Mapping[str, str]) -> None:
    """Raises ForbiddenError unless the form carries this session's token."""
    if not hmac.compare_digest(fields["csrf_token"].encode(), session.csrf.encode()):
        raise ForbiddenError("this form is from before you signed in; open the page again", code="csrf")


def _verdict(value: str) -> Verdict:
    if value == "approve":
        return "approve"
    if value == "deny":
        return "deny"
    if value == "break_glass":
        return "break_glass"
    raise InvalidRequestError(f"a vote is 'approve' or 'deny', not {value!r}")


def _reason(fields: Mapping[str, str], verdict: Verdict) -> str:
    """A predefined reason, the person's own text, or both. A denial needs one: the agent reads it."""
    pick = fields.get("pick", "")
    if pick and (pick not in DENIAL_REASONS or verdict != "deny"):
        raise InvalidRequestError(f"{pick!r} is not one of the reasons for a denial")
    words = fields.get("reason", "").replace("\r\n", "\n").strip()
    if verdict == "deny" and not (pick or words):
        raise InvalidRequestError("a denial needs a reason: the agent reads it", code="reason_required")
    if verdict == "break_glass" and not words:
        raise InvalidRequestError("break-glass needs a reason: others will read it", code="reason_required")
    return require_text_length(": ".join(part for part in (pick, words) if part))
