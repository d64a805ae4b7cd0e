"""The catalogue of the SDK's error texts: every error is on the page and has a code; none quotes a secret, and each
that a program meets names the next step.
"""

import importlib
import pkgutil
import re
import traceback
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest

import countersign
from countersign import Budget, MemoryAdapter, errors, llm_call, replay, tool
from countersign.errors.pending import ApprovalRequirement, PendingReview, Proposal, Question
from countersign.errors.reasons import DenyReason
from countersign.integrations.errors import ModelStopped, TurnLimit, require_package
from countersign.journal.location import parse_location
from countersign.journal.records import damaged as _damaged
from countersign.llm.errors import BudgetExceeded, UsageUnknown
from countersign.simulation.replay_report import Divergence, ReplayDiverged
from countersign.transactions.schedule import StepsRefused
from tests.fakes.desk import Desk
from tests.fakes.running import order_tool
from tests.unit.sdk.hunting import SECRET, found_in

WITHIN = {"TooLateError"}  # raised and caught between our own modules
BASES = {"FireError", "MisuseError", "Stopped", "WorldError"}
CAUSES = {"CommitUnknown", "McpToolError", "NotDone", "RestUnknown", "ToolRaised"}
"""They are the cause of an error that names the next step."""
OF_A_SERVICE = {"ServiceFailed", "VoteRefused"}
"""Raised by countersign.testing, in the words of its service."""

ARGS: dict[str, Any] = {"pin": SECRET}
EDIT = Proposal("p-1", "pay", "e", ARGS, {"pin": "0000"}, "too much", "m", "Maya")
REVIEW = PendingReview("e", "pay", "r", None, None, (ApprovalRequirement(("finance",), 1),))
QUESTION = Question("q", "r", "e", "pay", "why?", "Maya", "today")
STATES = {"pay#1": "fired", "mail#2": "failed"}
DIFFERS = Divergence("changed", "staged", 1, "pay", SECRET, SECRET, "pay has another argument")
RESUME, ANOTHER_KEY = "`countersign resume --tools MODULE`", "use another key"


ONCE_MORE, TWICE = "Another key would do it once more", "might happen twice"
SPENT: list[tuple[list[str], bool, str]] = [
    (["fired", "unused"], True, ONCE_MORE),
    (["compensation_failed", "failed"], True, ONCE_MORE),
    (["fired", "redeemed"], False, TWICE),
    (["unused", "unknown"], False, TWICE),
    (["compensating", "failed"], False, TWICE),
    ([], False, TWICE),
    (["compensated", "denied", "expired", "withdrawn", "revoked"], True, ANOTHER_KEY),
]
"""What became elsewhere of the calls of a key, whether that is its end, and what may be done."""


def budget_exceeded(measure: str, renews_at: datetime | None = None) -> BudgetExceeded:
    sums = dict.fromkeys(("limit", "spent", "reserved", "asked"), Decimal(1))
    return BudgetExceeded("b", measure=measure, per="run", renews_at=renews_at, **sums)


def every_error() -> list[type[errors.CountersignError]]:
    """The SDK's own, from any module."""
    for module in pkgutil.walk_packages(countersign.__path__, "countersign."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
    found: list[type[errors.CountersignError]] = []
    waiting = [errors.CountersignError]
    while waiting:
        kinds = [
            kind for kind in waiting.pop().__subclasses__() if kind.__module__.startswith("countersign.")
        ]
        found += [kind for kind in kinds if kind.__name__ not in WITHIN]
        waiting += kinds
    return found


def documented_parents() -> dict[str, str]:
    """Name by name, the error that the page shows it below."""
    reported: dict[str, str] = {}
    above: list[tuple[int, str]] = [(0, "")]
    for spaces, name in re.findall(r"(?m)^( {4,})([A-Z]\w+)", errors.__doc__ or ""):
        while above[-1][0] >= len(spaces):
            above.pop()
        reported[name] = above[-1][1]
        above.append((len(spaces), name))
    return reported


def test_the_page_lists_every_error_below_its_base() -> None:
    kinds = {kind.__name__: kind.__base__ for kind in every_error()}
    parents = {name: base.__name__ for name, base in kinds.items() if base is not None}
    assert documented_parents() == parents | {"CountersignError": "", "IndependentFailures": ""}


def test_every_error_has_a_code_of_its_own() -> None:
    codes = [kind.code for kind in every_error()]
    assert sorted(set(codes)) == sorted(codes)


MADE: list[tuple[errors.CountersignError, str]] = [
    (errors.RerunDiffers("k", 1, None, "pay"), "Make the body name the same calls"),
    (StepsRefused(["step 2 takes what step 3 answers; write it after that"]), "write it after"),
    (errors.Denied("k", "t", [DenyReason("pay", "e", "forbid", "no")]), "change what the reason names"),
    (errors.ReviewPending("k", "t", [REVIEW], parked=False), "under key 'k' once it is approved"),
    (errors.ReviewPending("k", "t", [], parked=True, proposals=[EDIT]), RESUME),
    (errors.ReviewPending("k", "t", [], parked=True, questions=[QUESTION]), "`countersign answer KEY TEXT`"),
    (errors.ReviewRequired("k", "t", "pay", "e", REVIEW.asks), "declare the tool staged"),
    (errors.AlreadyRedeemed("k", "t", "fired"), ANOTHER_KEY),
    (errors.AlreadyRedeemed("k", "t", "firing", finished=False), RESUME),
    (errors.AlreadyRedeemed.here("k", "t", STATES, "unsettled", well=False, kept=False), "not in effect: mail#2"),
    *[(errors.AlreadyRedeemed.elsewhere("k", "t", states), step) for states, _, step in SPENT],
    (errors.ReleaseRefused("t", "dev_assurance"), "set COUNTERSIGN_ALLOW_DEV=1"),
    (errors.ReleaseRefused("t", "bad_signature", step=3), "Tell the operator"),
    (errors.ReleaseLapsed("k", "t", "too late"), ANOTHER_KEY),
    (errors.ReleaseLapsed("k", "t", "too late", may_fire=True), RESUME),
    (errors.IsolationConflict("db", "row", read=True, expected="1", now="2"), "run the transaction again"),
    (errors.IsolationConflict("db", "row", read=True, expected="1", now="2", said="busy"), "run the transaction again"),
    (budget_exceeded("calls", datetime(2026, 11, 24, tzinfo=UTC)), "00:00 UTC. Wait, or tell the user"),
    (budget_exceeded("tokens"), "not renewed. Ask for less ("),
    (errors.SavepointLost("gone"), "Run it again"),
    (errors.SessionLost("db", "gone"), "run it again"),
    (errors.SessionLost("db", "gone", may_stand=True), "check it before"),
    (errors.Edited("k", "t", [EDIT]), "accept_edits=True"),
    (errors.EffectFailed("k", "t", "pay", "e", "NotDone", {"pay#1": "failed"}), ANOTHER_KEY),
    (errors.EffectFailed("k", "t", "mail", "e", "NotDone", STATES), RESUME),
    (errors.PartlyFired("k", "t", "late", STATES), "only what is not in effect: mail#2"),
    (errors.OutcomeUnknown("k", "t", ["pay#1"], {}, tasks_url="https://q"), "queue at https://q"),
    (errors.OutcomeUnknown("k", "t", [], {}), RESUME),
    (errors.LiveCommitFailed("k", "t", "db", "full", {}), "Run it again"),
    (errors.LiveCommitFailed("k", "t", "db", "full", {"pay#1": "compensated"}), ANOTHER_KEY),
    (errors.LiveCommitFailed("k", "t", "db", "full", STATES), "Tell the operator"),
    (errors.ServiceUnavailable("GET /v1", "timeout"), "Try again later under the same key"),
    (errors.ServiceRefused(403, "frozen", "stopped", ARGS), "Change what it names"),
    (errors.OverQuota(429, "over_quota", "too many", ARGS), "tell the operator"),
    (errors.TransactionBusy("k", "host/1/2/3/4", 1), "Try again when"),
    (errors.ResourceBusy("db", "k", "process 1", 1), "Serialize(timeout_seconds=...)"),
    (errors.WorkerStopping(), "`countersign worker --tools MODULE`"),
    (errors.JournalError(*_damaged("row", "e", "no JSON").args), "restore a copy"),
    (errors.JournalSealed("the key is not here"), "set COUNTERSIGN_JOURNAL_KEY"),
    (UsageUnknown("dict", ["usage"]), "unknown_tokens=True"),
    (ReplayDiverged("k", (DIFFERS,)), "run it under another key"),
    (ModelStopped("refusal", SECRET, [ARGS]), "ask again with other messages"),
    (ModelStopped("length", SECRET, [ARGS]), "larger limit of tokens"),
    (TurnLimit(3, [ARGS]), "max_turns="),
]  # fmt: skip


def not_recorded(pay: object, desk: Desk) -> None:
    @tool("find", lane="live", adapter=MemoryAdapter(), secret=["who"], registry=desk.registry)
    def find(who: str) -> str:
        return who

    desk.run((pay, SECRET))
    replay("t-1", lambda _: find(SECRET), mode="reconstruct", runtime=desk.runtime)


def lease_lost(pay: object, desk: Desk) -> None:
    leases = desk.runtime.journal.leases
    lease: Any = leases.acquire(desk.run((pay, SECRET)).txn)
    leases.release(lease)
    leases.renew(lease)


def ask(desk: Desk, **options: Any) -> None:
    with llm_call("m", prompt=SECRET, runtime=desk.runtime, **options):
        pass


def live() -> None: ...


PAID = Budget("b", "money", 1, "day", "USD")
PROVOKED: dict[str, tuple[Any, str]] = {
    "OutsideTransaction": (lambda pay, _: pay(SECRET), "`with transaction(...)`"),
    "NotStageable": (lambda pay, desk: desk.run((pay, f"{SECRET}\udcff")), "pin"),
    "PlaceholderUsed": (lambda pay, desk: desk.run((lambda: pay(SECRET).result,)), "Read .result after the"),
    "RegistrationError": (
        lambda _, desk: tool(lane="live", registry=desk.registry)(live),
        "write adapter=...",
    ),
    "SettingsError": (lambda *_: parse_location(f"mysql://u:{SECRET}@host/db"), "postgresql://"),
    "PriceUnknown": (lambda _, desk: ask(desk, budgets=[PAID], max_tokens=9), "add one to the price file ("),
    "NotRecorded": (not_recorded, "`--mode verify`"),
    "PackageMissing": (lambda *_: require_package("no_such_vendor", "openai"), "countersign-sdk[openai]"),
    "LeaseLost": (lease_lost, "Run it again under its key"),
    "CallNotRecorded": (lambda _, desk: ask(desk), "`countersign budget settle"),
}


def names_a_step_and_no_secret(error: BaseException, step: str) -> bool:
    printed = "".join(traceback.format_exception(error))
    return step in str(error) and not found_in({"text": f"{error}{error.args}{printed}".encode()})


@pytest.mark.parametrize(("error", "step"), MADE, ids=[f"{type(one).__name__}: {step}" for one, step in MADE])
def test_a_text_names_the_next_step_and_no_secret(error: errors.CountersignError, step: str) -> None:
    assert names_a_step_and_no_secret(error, step), str(error)


@pytest.mark.parametrize("kind", PROVOKED)
def test_a_text_that_is_raised_names_the_next_step_and_no_secret(kind: str, desk: Desk) -> None:
    @order_tool(desk, resource=("Order", "const:o"), secret=["pin"])
    def pay(pin: str) -> None: ...

    provoke, step = PROVOKED[kind]
    with pytest.raises(errors.CountersignError) as raised:
        provoke(pay, desk)
    assert type(raised.value).__name__ == kind
    assert names_a_step_and_no_secret(raised.value, step), str(raised.value)


def test_no_error_is_left_out() -> None:
    rendered = {type(one).__name__ for one, _ in MADE} | {*PROVOKED}
    assert {kind.__name__ for kind in every_error()} - BASES - CAUSES - OF_A_SERVICE == rendered


def test_what_was_spent_elsewhere_is_finished_only_where_nothing_of_it_is_open() -> None:
    reported = [errors.AlreadyRedeemed.elsewhere("k", "t", states) for states, _, _ in SPENT]
    assert [one.finished for one in reported] == [finished for _, finished, _ in SPENT]
    assert [ANOTHER_KEY in str(one) for one in reported] == [step == ANOTHER_KEY for _, _, step in SPENT]
