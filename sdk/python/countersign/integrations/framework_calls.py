"""Carries out single calls of an agent framework, each as a transaction of its own.

The run key of a transaction names the call: the program's key for the run and the framework's id of the call, if the
framework keeps that id over a restart, or else the tool and its arguments. A rerun of the call in any process therefore
finds the same review and the same result, and fires nothing twice. Only the policy service decides: what a framework
passes when it resumes a run is not read.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypedDict

from countersign.commit.review import EditPolicy, OnQuestion
from countersign.concurrency import run_sync
from countersign.errors import CountersignError, MisuseError, NotStageable, ReviewPending
from countersign.integrations.conversation import ModelCall, ToolAnswer
from countersign.integrations.tool_definitions import OfferedTools, description_of
from countersign.integrations.tool_execution import StepExecutor
from countersign.manifests.drafts import args_schema
from countersign.transactions.opening import MAX_KEY, require_key

if TYPE_CHECKING:
    from countersign.runtime import Runtime

log: Final = logging.getLogger("countersign")

RunKey: TypeAlias = "str | Callable[[Any], str]"
"""The key of a run, or a function that returns it for the framework's context of a call."""

_MAX_RUN_KEY: Final = 120  # leaves space for the digest that ends a long key
_DIGEST_LETTERS: Final = 64


class CallOptions(TypedDict, total=False):
    """Options of each call, as for `transaction`."""

    wait: float
    purpose: str | None
    on_behalf_of: str | None
    accept_edits: EditPolicy
    on_question: OnQuestion | None
    runtime: Runtime | None


@dataclass(frozen=True, slots=True)
class ToolDefinition:
    """What a framework needs to offer one tool to a model."""

    name: str
    description: str
    schema: dict[str, Any]


class FrameworkCalls:
    """The gated tools that one framework may call.

    Raises:
        RegistrationError: one is not decorated with `@tool`, or has an argument without a type.
        MisuseError: one is listed twice, or the key or an option is invalid.
    """

    def __init__(
        self,
        tools: Sequence[Callable[..., Any]],
        key: RunKey,
        options: Mapping[str, Any],
        *,
        awaits: bool = True,
    ) -> None:
        self._offered = OfferedTools(tools)
        self._key = key if callable(key) else _require_run_key(key)
        self._options = options
        self._executor(awaits=awaits)  # validates the options

    def __iter__(self) -> Iterator[ToolDefinition]:
        for name, one in self._offered:
            yield ToolDefinition(name, description_of(one), args_schema(one))

    async def answer(self, call: ModelCall, run_key: str) -> ToolAnswer:
        """Carry out one call inside an event loop.

        Raises:
            ReviewPending: a review is open.
            CountersignError: as leaving a transaction does, except refusals, which are answers.
        """
        (answer,) = await self._executor(awaits=True).take([call], key=run_key, said="")
        return answer

    def answer_blocking(self, call: ModelCall, run_key: str) -> ToolAnswer:
        """The same without an event loop.

        Raises:
            MisuseError: a tool is async.
        """
        (answer,) = run_sync(self._executor(awaits=False).take([call], key=run_key, said=""))
        return answer

    def key_by_id(self, context: Any, call_id: str | None) -> str:
        """The run key of a call whose id the framework keeps over a restart.

        Raises:
            MisuseError: the call has no id, or the run has no valid key.
        """
        if not call_id:
            raise MisuseError("the framework gave this call no id, so a rerun could not find it again")
        return _joined(self._run_key(context), call_id)

    def key_by_arguments(self, context: Any, name: str, args: Mapping[str, Any]) -> str:
        """The run key of a call that gets another id at each run: equal calls of one run are the same call."""
        digest = hashlib.sha256(self._as_staged(name, args)).hexdigest()
        return _joined(self._run_key(context), name, digest[: _DIGEST_LETTERS // 2])

    def _as_staged(self, name: str, args: Mapping[str, Any]) -> bytes:
        """The arguments as the tool takes them, so that a default which is given or left out is the same call."""
        found = self._offered.find(name)
        try:
            if found is not None:
                return found[0].signature.freeze((), args)
        except NotStageable:
            pass  # the call will be refused
        return json.dumps(args, sort_keys=True, default=str).encode()

    def _run_key(self, context: Any) -> str:
        return self._key if isinstance(self._key, str) else _require_run_key(self._key(context))

    def _executor(self, *, awaits: bool) -> StepExecutor:
        return StepExecutor(self._offered, awaits, **self._options)


def _require_run_key(key: object) -> str:
    return require_key(key, "run", longest=_MAX_RUN_KEY, why=": its calls add their own")


def _joined(run_key: str, *parts: str) -> str:
    key = "/".join((run_key, *parts))
    if len(key) <= MAX_KEY:
        return key
    return f"{run_key}/{hashlib.sha256(key.encode()).hexdigest()[:_DIGEST_LETTERS]}"


def pending_payload(pending: ReviewPending) -> dict[str, Any]:
    """An open review as JSON, for a program that shows it or stores it."""
    return {
        "state": "pending",
        "key": pending.key,
        "message": str(pending),
        "reviews": [
            {
                "tool": one.tool,
                "review_id": one.review_id,
                "url": one.url,
                "waiting_for": [str(need) for need in one.asks],
                "answer_by": one.answer_by,
            }
            for one in pending.reviews
        ],
        "proposals": [str(one) for one in pending.proposals],
        "questions": [str(one) for one in pending.questions],
    }


def pending_answer(call_id: str, pending: ReviewPending) -> ToolAnswer:
    """The answer for a model that goes on while the review is open."""
    waits = "; ".join(map(str, [*pending.reviews, *pending.proposals, *pending.questions]))
    return ToolAnswer(
        call_id,
        f"not done yet: {waits or 'people are asked'}. Go on with something else, or tell the user that it waits for "
        "approval. The same call with the same arguments reports later what was decided; do not try other arguments "
        "or another tool for it.",
        done=False,
    )


def failed_answer(call: ModelCall, error: CountersignError) -> ToolAnswer:
    """The answer where a framework would hide an error from the program: the error is logged as well."""
    log.error("the call of %s ended with %s", call.name, type(error).__name__, exc_info=error)
    return ToolAnswer(
        call.call_id,
        f"{error} Do not call it again in another way: tell the user that the operator of this agent has to look.",
        done=False,
    )
