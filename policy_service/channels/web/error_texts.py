"""A refusal as a page: what did not happen, why, what to do next. One table from codes to words.

The sentence in the middle is the error's own; the table adds the heading and the way on.
"""

import re
from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class ErrorText:
    """The frame of a refusal."""

    heading: str
    advice: str
    icon: str = "info"
    tone: str = ""
    href: str = "/"
    label: str = "Go to the queue"

    @property
    def alert(self) -> bool:
        """Read out at once only when somebody's vote was not counted, or their word or their stop not taken."""
        return self.heading in {_NOT_COUNTED, _NOT_SETTLED, _NOT_STOPPED}


_NOT_COUNTED = "Your vote was not counted"
_NOT_SETTLED = "Nothing was settled"
_NOT_WRITTEN = "Your words were not kept"
_NOT_STOPPED = "Nothing was stopped"
_WORDS = {
    "unauthenticated": ErrorText(
        "You are signed out",
        "Nothing was changed. Sign in, then do it again.",
        "key",
        "why-warn",
        "/sign-in",
        "Sign in",
    ),
    "not_found": ErrorText(
        "There is nothing here", "It may have been another deployment's link, or not one you may see."
    ),
    "not_eligible": ErrorText(
        _NOT_COUNTED, "Somebody the gate names has to decide this one. Nothing was released."
    ),
    "step_up_required": ErrorText(
        _NOT_COUNTED, "This gate wants a passkey for an approval. Nothing was released.", "passkey"
    ),
    "frozen": ErrorText(
        _NOT_COUNTED, "A stop comes before any emergency. Nothing was released.", "pause", "why-bad"
    ),
    "review_closed": ErrorText(
        _NOT_COUNTED, "It had settled before your vote arrived. Open it to see how it ended.", "clock"
    ),
    "reason_required": ErrorText(
        _NOT_COUNTED, "Go back, write one, and send it again. Nothing was released.", "quote"
    ),
    "stale_task": ErrorText(
        _NOT_SETTLED,
        "It has moved since you read it. Open the task again and read what stands now.",
        "refresh",
        "why-warn",
        "/tasks",
        "Go to the tasks",
    ),
    "task_settled": ErrorText(
        _NOT_SETTLED,
        "The first word stands. Open the task to see it.",
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
        "A way in works once and for a short time. Begin again.",
        "key",
        label="How to sign in",
        href="/sign-in",
    ),
    "misdirected_host": ErrorText(
        "This is not where the queue is", "Nothing was done. Open the address above.", "globe"
    ),
    "too_large": ErrorText("Nothing was done", "Send less, and send it again.", "alert", "why-warn"),
    "rate_limited": ErrorText("Not now", "Nothing was done. Try again in a minute.", "clock", "why-warn"),
    "storage_unavailable": ErrorText(
        "Nothing was done",
        "The service cannot write at the moment. Try again in a minute.",
        "alert",
        "why-bad",
    ),
    "internal": ErrorText(
        "Nothing was released",
        "The fault is the service's. Load the review again before you decide.",
        "alert",
        "why-bad",
    ),
}
_WORDS["issuer_unavailable"] = ErrorText(
    "Your provider does not answer",
    "Nobody was signed in and nothing was changed. Try again in a minute.",
    "clock",
    "why-warn",
    "/sign-in",
    "Sign in",
)
_WORDS["method_not_allowed"] = ErrorText("Nothing was done", "Open the queue, and go on from there.")
_WORDS["expired_token"] = _WORDS["bad_token"]
_OF_SETTLING = {
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
_OF_WRITING = {
    "not_eligible": ErrorText(
        _NOT_WRITTEN, "Those whom the review asks can write there, and the agent's owner."
    ),
    "review_closed": ErrorText(
        _NOT_WRITTEN, "It had settled before your words arrived. Open it to see how.", "clock"
    ),
    "invalid_request": ErrorText(_NOT_WRITTEN, "Go back, and send it again.", "alert", "why-warn"),
    "rate_limited": ErrorText(_NOT_WRITTEN, "What is there can still be read and decided on.", "quote"),
}


_NOT_PROPOSED = "Nothing was changed"
_OF_PROPOSING = {
    "not_eligible": ErrorText(_NOT_PROPOSED, "Whoever may vote proposes, and the agent's side answers."),
    "reason_required": ErrorText(
        _NOT_PROPOSED, "Go back, write why, and send it again. The agent and its owner read it.", "quote"
    ),
    "review_closed": ErrorText(_NOT_PROPOSED, "Open the review to see how it ended.", "clock"),
    "rate_limited": ErrorText(_NOT_PROPOSED, "What is there can still be read and decided on.", "quote"),
    "proposal_closed": ErrorText(_NOT_PROPOSED, "Open the review to see what stands now.", "clock"),
    "superseded": ErrorText(
        _NOT_PROPOSED, "Open the review and read what stands now.", "refresh", "why-warn"
    ),
    "frozen": ErrorText(_NOT_PROPOSED, "An operator has stopped it. Try again when that is over.", "clock"),
}
_KEYS_STAND = "Your passkeys are as they were"
_OF_PASSKEYS = {
    "step_up_required": ErrorText(
        _KEYS_STAND, "Begin again there, and confirm with the passkey it asks for.", "passkey"
    ),
    "not_eligible": ErrorText(_KEYS_STAND, "Only their owner changes them, signed in anew.", "passkey"),
    "invalid_request": ErrorText(_KEYS_STAND, "Go back, and send it again.", "alert", "why-warn"),
    "not_found": ErrorText(_KEYS_STAND, "It may have been removed a moment ago.", "passkey"),
}
_TO_SLACK = ("/slack", "Go to your Slack accounts")
_NOT_LINKED = "No Slack account was linked"
_OF_LINKING = {
    "bad_token": ErrorText(
        _NOT_LINKED, "A link works once and for a few minutes. Nothing was changed.", "link", "", *_TO_SLACK
    ),
    "not_eligible": ErrorText(
        _NOT_LINKED,
        "Somebody sent it to you? Tell whoever operates this service.",
        "alert",
        "why-bad",
        *_TO_SLACK,
    ),
    "illegal_state": ErrorText(_NOT_LINKED, "Nothing was changed.", "link", "why-warn", *_TO_SLACK),
    "invalid_request": ErrorText(
        _NOT_LINKED, "Open the link again, and press the button there.", "alert", "why-warn", *_TO_SLACK
    ),
}
_OF_LINKING["expired_token"] = _OF_LINKING["bad_token"]
_LINKS_STAND = "Your Slack accounts are as they were"
_OF_SLACK = {
    "not_found": ErrorText(_LINKS_STAND, "It may have been unlinked a moment ago.", "link", "", *_TO_SLACK),
    "invalid_request": ErrorText(
        _LINKS_STAND, "Go back, and send it again.", "alert", "why-warn", *_TO_SLACK
    ),
}
_OTHER = ErrorText("Nothing was done", "Open the page again, and begin anew there.", "alert", "why-warn")


def _of_a_stop(heading: str) -> dict[str, ErrorText]:
    frame = ("/stop", "Go to the stop")
    return {
        "not_eligible": ErrorText(heading, "Somebody who may has to do this.", "people", "why-bad", *frame),
        "reason_required": ErrorText(
            heading, "Go back, write why, and send it again.", "quote", "why-bad", *frame
        ),
        "invalid_request": ErrorText(heading, "Go back, and send it again.", "alert", "why-bad", *frame),
        "not_found": ErrorText(heading, "Go back, and name one that is there.", "alert", "why-bad", *frame),
    }


_WHERE = (
    (re.compile("^/tasks/"), _OF_SETTLING),
    (re.compile("^/stop"), _of_a_stop(_NOT_STOPPED)),
    (re.compile("^/start-again"), _of_a_stop("Nothing was started again")),
    (re.compile("/comments$"), _OF_WRITING),
    (re.compile("^/passkeys/"), _OF_PASSKEYS),
    (re.compile("^/slack/link"), _OF_LINKING),
    (re.compile("^/slack/"), _OF_SLACK),
    (re.compile("^/proposals/|/(propose|proposals)$"), _OF_PROPOSING),
)


# Where a form was sent from: whoever is refused goes back there, not to the top of the queue.
_FROM = (
    (re.compile("^(/reviews/[^/]+)/"), "Open the review"),
    (re.compile("^(/tasks/[^/]+)/"), "Open the task"),
    (re.compile("^(/alike/[^/]+)/"), "Open them again"),
    (re.compile("^(/agents)/"), "Go to the agents"),
    (re.compile("^(/audit)(?:/|$)"), "Search the whole log"),
    (re.compile("^(/passkeys)/"), "Go to your passkeys"),
    (re.compile("^(/slack)/"), "Go to your Slack accounts"),
    (re.compile("^(/policies)(?:/|$)"), "Go to the policies"),
)
_NOWHERE = frozenset(
    {"unauthenticated", "bad_token", "expired_token", "misdirected_host", "issuer_unavailable"}
)


def error_text_for(code: str, path: str = "") -> ErrorText:
    """The frame of a code; an unknown one is told plainly that nothing was done.

    Where somebody was doing something else than voting, what votes share with it is told about that. ``path`` is the
    address that was asked: the way on leads back to what it is about.
    """
    own = next((words for forms, words in _WHERE if forms.search(path)), {})
    words = own.get(code) or _WORDS.get(code, _OTHER)
    if code in _NOWHERE or (code == "not_found" and path.startswith(("/reviews/", "/tasks/", "/alike/"))):
        return words
    back = next(((found[1], label) for way, label in _FROM if (found := way.search(path))), None)
    return words if back is None else replace(words, href=back[0], label=back[1])
