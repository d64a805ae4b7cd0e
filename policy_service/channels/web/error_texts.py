"""Headings, advice and links of refusal pages, by error code and path. The error supplies the sentence in between."""

import re
from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class ErrorText:
    """The text around an error on its page."""

    heading: str
    advice: str
    icon: str = "info"
    tone: str = ""
    href: str = "/"
    label: str = "Go to the queue"

    @property
    def alert(self) -> bool:
        """Whether screen readers announce it at once: a vote, settlement or stop did not take effect."""
        return self.heading in {_NOT_COUNTED, _NOT_SETTLED, _NOT_STOPPED}


_NOT_COUNTED = "Your vote was not counted"
_NOT_SETTLED = "Nothing was settled"
_NOT_SAVED = "Your comment was not saved"
_NOT_STOPPED = "Nothing was stopped"
_TEXTS = {
    "unauthenticated": ErrorText(
        "You are signed out",
        "Nothing was changed. Sign in, then do it again.",
        "key",
        "why-warn",
        "/sign-in",
        "Sign in",
    ),
    "not_found": ErrorText("Not found", "The link may belong to another deployment, or you may not see it."),
    "not_eligible": ErrorText(
        _NOT_COUNTED, "A member of the gate's groups has to decide it. Nothing was released."
    ),
    "step_up_required": ErrorText(
        _NOT_COUNTED, "This gate requires a passkey for an approval. Nothing was released.", "passkey"
    ),
    "frozen": ErrorText(
        _NOT_COUNTED, "A stop also applies to break-glass. Nothing was released.", "pause", "why-bad"
    ),
    "review_closed": ErrorText(
        _NOT_COUNTED, "It was settled before your vote arrived. Open it to see the outcome.", "clock"
    ),
    "reason_required": ErrorText(
        _NOT_COUNTED, "Go back, write one, and send it again. Nothing was released.", "quote"
    ),
    "stale_task": ErrorText(
        _NOT_SETTLED,
        "It has changed since you read it. Open the task again.",
        "refresh",
        "why-warn",
        "/tasks",
        "Go to the tasks",
    ),
    "task_settled": ErrorText(
        _NOT_SETTLED,
        "The first answer is final. Open the task to see it.",
        "check",
        "",
        "/tasks",
        "Go to the tasks",
    ),
    "wrong_answer": ErrorText(
        _NOT_SETTLED,
        "Open the task again, and press one of its answers.",
        "alert",
        "why-warn",
        "/tasks",
        "Go to the tasks",
    ),
    "csrf": ErrorText(
        "Nothing was done",
        "Open the page again, and press the button there.",
        "alert",
        "why-warn",
    ),
    "bad_token": ErrorText(
        "You are not signed in",
        "Sign-in links work once and for a short time. Start again.",
        "key",
        label="How to sign in",
        href="/sign-in",
    ),
    "misdirected_host": ErrorText(
        "This is not the address of the queue", "Nothing was done. Open the address above.", "globe"
    ),
    "too_large": ErrorText("Nothing was done", "Send less, and send it again.", "alert", "why-warn"),
    "rate_limited": ErrorText("Not now", "Nothing was done. Try again in a minute.", "clock", "why-warn"),
    "storage_unavailable": ErrorText(
        "Nothing was done",
        "The service cannot write at the moment. Try again in a minute.",
        "alert",
        "why-bad",
    ),
    # It can have failed after a part was committed, such as the first votes of a batch.
    "internal": ErrorText(
        "The service failed",
        "What you sent may have been done in part. Load the page again and check before you repeat it.",
        "alert",
        "why-bad",
    ),
}
_TEXTS["issuer_unavailable"] = ErrorText(
    "Your provider does not answer",
    "You were not signed in and nothing was changed. Try again in a minute.",
    "clock",
    "why-warn",
    "/sign-in",
    "Sign in",
)
_TEXTS["method_not_allowed"] = ErrorText("Nothing was done", "Continue from the queue.")
_TEXTS["expired_token"] = _TEXTS["bad_token"]
_SETTLEMENT_TEXTS = {
    "not_eligible": ErrorText(
        _NOT_SETTLED, "Somebody else has to settle this one.", "info", "", "/tasks", "Go to the tasks"
    ),
    "reason_required": ErrorText(
        _NOT_SETTLED,
        "Go back, write how you know, and send it again.",
        "quote",
        "",
        "/tasks",
        "Go to the tasks",
    ),
    "invalid_request": ErrorText(
        _NOT_SETTLED, "Go back, and send it again.", "alert", "why-warn", "/tasks", "Go to the tasks"
    ),
}
_COMMENT_TEXTS = {
    "not_eligible": ErrorText(_NOT_SAVED, "Members of its gates and the agent's owner can comment."),
    "review_closed": ErrorText(
        _NOT_SAVED, "It was settled before your comment arrived. Open it to see the outcome.", "clock"
    ),
    "invalid_request": ErrorText(_NOT_SAVED, "Go back, and send it again.", "alert", "why-warn"),
    "rate_limited": ErrorText(_NOT_SAVED, "You can still read and decide the review.", "quote"),
}


_NOT_PROPOSED = "Nothing was changed"
_PROPOSAL_TEXTS = {
    "not_eligible": ErrorText(
        _NOT_PROPOSED, "People who may vote can propose; the agent or its owner answers."
    ),
    "reason_required": ErrorText(
        _NOT_PROPOSED, "Go back, write why, and send it again. The agent and its owner read it.", "quote"
    ),
    "review_closed": ErrorText(_NOT_PROPOSED, "Open the review to see the outcome.", "clock"),
    "rate_limited": ErrorText(_NOT_PROPOSED, "You can still read and decide the review.", "quote"),
    "proposal_closed": ErrorText(_NOT_PROPOSED, "Open the review to see the current state.", "clock"),
    "superseded": ErrorText(
        _NOT_PROPOSED, "Open the review and read the current revision.", "refresh", "why-warn"
    ),
    "frozen": ErrorText(_NOT_PROPOSED, "It is stopped. Try again when the stop is lifted.", "clock"),
}
_KEYS_UNCHANGED = "Your passkeys were not changed"
_PASSKEY_TEXTS = {
    "step_up_required": ErrorText(
        _KEYS_UNCHANGED, "Start again, and confirm with the passkey it asks for.", "passkey"
    ),
    "not_eligible": ErrorText(
        _KEYS_UNCHANGED, "Only their owner can change them, after signing in again.", "passkey"
    ),
    "invalid_request": ErrorText(_KEYS_UNCHANGED, "Go back, and send it again.", "alert", "why-warn"),
    "not_found": ErrorText(_KEYS_UNCHANGED, "It may have been removed a moment ago.", "passkey"),
}
_TO_SLACK = ("/slack", "Go to your Slack accounts")
_NOT_LINKED = "No Slack account was linked"
_LINK_TEXTS = {
    "bad_token": ErrorText(
        _NOT_LINKED, "A link works once and for a few minutes. Nothing was changed.", "link", "", *_TO_SLACK
    ),
    "not_eligible": ErrorText(
        _NOT_LINKED,
        "If somebody sent you this link, contact the operator of this service.",
        "alert",
        "why-bad",
        *_TO_SLACK,
    ),
    "illegal_state": ErrorText(_NOT_LINKED, "Nothing was changed.", "link", "why-warn", *_TO_SLACK),
    "invalid_request": ErrorText(
        _NOT_LINKED, "Open the link again, and press the button there.", "alert", "why-warn", *_TO_SLACK
    ),
}
_LINK_TEXTS["expired_token"] = _LINK_TEXTS["bad_token"]
_LINKS_UNCHANGED = "Your Slack accounts were not changed"
_SLACK_TEXTS = {
    "not_found": ErrorText(
        _LINKS_UNCHANGED, "It may have been unlinked a moment ago.", "link", "", *_TO_SLACK
    ),
    "invalid_request": ErrorText(
        _LINKS_UNCHANGED, "Go back, and send it again.", "alert", "why-warn", *_TO_SLACK
    ),
}
_DEFAULT = ErrorText("Nothing was done", "Open the page again, and start over.", "alert", "why-warn")


def _stop_texts(heading: str) -> dict[str, ErrorText]:
    frame = ("/stop", "Go to the stop")
    return {
        "not_eligible": ErrorText(
            heading, "Somebody who is permitted has to do this.", "people", "why-bad", *frame
        ),
        "reason_required": ErrorText(
            heading, "Go back, write why, and send it again.", "quote", "why-bad", *frame
        ),
        "invalid_request": ErrorText(heading, "Go back, and send it again.", "alert", "why-bad", *frame),
        "not_found": ErrorText(heading, "Go back, and name an existing one.", "alert", "why-bad", *frame),
    }


_TEXTS_BY_PATH = (
    (re.compile("^/tasks/"), _SETTLEMENT_TEXTS),
    (re.compile("^/stop"), _stop_texts(_NOT_STOPPED)),
    (re.compile("^/start-again"), _stop_texts("Nothing was started again")),
    (re.compile("/comments$"), _COMMENT_TEXTS),
    (re.compile("^/passkeys/"), _PASSKEY_TEXTS),
    (re.compile("^/slack/link"), _LINK_TEXTS),
    (re.compile("^/slack/"), _SLACK_TEXTS),
    (re.compile("^/proposals/|/(propose|proposals)$"), _PROPOSAL_TEXTS),
)


# By the path of a form: the link back to its page.
_BACK_LINKS = (
    (re.compile("^(/reviews/[^/]+)/"), "Open the review"),
    (re.compile("^(/tasks/[^/]+)/"), "Open the task"),
    (re.compile("^(/alike/[^/]+)/"), "Open them again"),
    (re.compile("^(/agents)/"), "Go to the agents"),
    (re.compile("^(/audit)(?:/|$)"), "Search the whole log"),
    (re.compile("^(/passkeys)/"), "Go to your passkeys"),
    (re.compile("^(/slack)/"), "Go to your Slack accounts"),
    (re.compile("^(/policies)(?:/|$)"), "Go to the policies"),
)
_WITHOUT_BACK_LINK = frozenset(
    {"unauthenticated", "bad_token", "expired_token", "misdirected_host", "issuer_unavailable"}
)


def error_text_for(code: str, path: str = "") -> ErrorText:
    """The text around an error, by its code and the path of the request.

    Codes that several forms share have their own text for each form.
    """
    own = next((words for forms, words in _TEXTS_BY_PATH if forms.search(path)), {})
    words = own.get(code) or _TEXTS.get(code, _DEFAULT)
    if code in _WITHOUT_BACK_LINK or (
        code == "not_found" and path.startswith(("/reviews/", "/tasks/", "/alike/"))
    ):
        return words
    back = next(((found[1], label) for way, label in _BACK_LINKS if (found := way.search(path))), None)
    return words if back is None else replace(words, href=back[0], label=back[1])
