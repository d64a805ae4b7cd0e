"""`with llm_call(...)`: reserves in the budgets before a model is called, and records the usage afterwards.

    with llm_call("example-small", max_tokens=500, prompt=messages) as call:
        response = client.chat.completions.create(model="example-small", messages=messages, max_tokens=500)
        call.record(response)

`async with` works the same. As a decorator it records the returned response. There is no cache: equal calls are
separate calls. If a block ends without a record, its reservation is freed only if no call was made: on `NotDone`, an
exception listed in `not_made`, or `call.release()`. In any other case the call may have been paid for, and it stays
reserved.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from decimal import Decimal
from functools import wraps
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

from countersign import tracing
from countersign.errors import MisuseError, NotDone
from countersign.llm.budgets import Bounds, Budget, input_bound
from countersign.llm.errors import CallNotRecorded, UsageUnknown
from countersign.llm.ledger import Ledger, LlmRecord
from countersign.llm.prices import is_name
from countersign.llm.usage import read_usage
from countersign.tools.context import current_transaction, firing_effect

if TYPE_CHECKING:
    from countersign.runtime import Runtime

F = TypeVar("F", bound=Callable[..., Any])

_PROVIDERS: Final = {"google": "gcp.gen_ai"}  # where OpenTelemetry uses another name
_MAX_NAME: Final = 200  # of a model or a run, as long as the key of a transaction


@dataclass(frozen=True, slots=True)
class CallRequest:
    """The parameters of a call before it is made."""

    model: str
    bounds: Bounds
    run: str | None = None
    budgets: tuple[Budget, ...] = ()
    reasoning: bool = False
    unknown_tokens: bool = False
    not_made: tuple[type[BaseException], ...] = ()
    runtime: Runtime | None = None

    def resolved(self) -> tuple[Ledger, str | None]:
        """The ledger, and the run: as given, or that of the surrounding transaction or firing tool."""
        around, firing = current_transaction.get(), firing_effect.get()
        if around is not None:
            counting, run = around.ledger, around.run_key_for_budgets
        elif firing is not None:
            counting, run = firing.ledger, firing.run_key
        else:
            counting, run = None, None
        if self.runtime is not None:
            counting = self.runtime.ledger
        return counting or _default().ledger, run if self.run is None else self.run


class LlmCall:
    """A call within its budgets. `record` or `release` it inside the block."""

    def __init__(self, asking: CallRequest, tell: Callable[[Mapping[str, object]], None]) -> None:
        self._asking = asking
        self._tell = tell
        self._ledger, self.run = asking.resolved()
        self.ended = False
        self._reserved = self._ledger.reserve(
            asking.model, self.run, asking.bounds, asking.budgets, keeps_reasoning=asking.reasoning
        )
        self.call_id = self._reserved.call_id
        self._since = self._ledger.clock.monotonic()

    def record(self, response: object, *, unknown_tokens: bool | None = None) -> LlmRecord:
        """Record the usage from the response: an object or a dict, for a stream its last usage.

        Raises:
            UsageUnknown: the response does not state it. The call stays reserved; with unknown_tokens=True it is
                recorded.
            MisuseError: this call was recorded or released before.
        """
        milliseconds = -int(-(self._ledger.clock.monotonic() - self._since) * 1000 // 1)
        self.ended = True  # the call was made, regardless of its response
        allow = self._asking.unknown_tokens if unknown_tokens is None else unknown_tokens
        try:
            usage = read_usage(response, unknown_tokens=allow, reasoning=self._asking.reasoning)
        except BaseException as error:
            self._ledger.doubt(self.call_id, f"made; its usage could not be read: {type(error).__name__}")
            raise
        record = self._ledger.settle(self._reserved, usage, milliseconds)
        self._tell(_response_attributes(record))
        return record

    def release(self, why: str = "not made") -> None:
        """State that no call was made: its reservation is freed.

        Raises:
            MisuseError: this call was recorded or released before.
        """
        self.ended = True
        self._ledger.release(self.call_id, why)

    def leave(self, error: BaseException | None) -> None:
        """End the block.

        Raises:
            CallNotRecorded: it ended without an error, and the call was neither recorded nor released.
        """
        self._tell = _nothing  # the span ends here; a later record still counts
        if self.ended:
            return
        if error is not None and isinstance(error, (NotDone, *self._asking.not_made)):
            self.release(f"not made: {type(error).__name__}")
            return
        self.ended = True
        why = "the block ended without a record" if error is None else type(error).__name__
        self._ledger.doubt(self.call_id, f"it is not known whether it was made: {why}")
        if error is None:
            raise CallNotRecorded(
                f"the block of a call to {self._asking.model!r} ended without call.record(response); what was "
                "reserved for it stays reserved until a person settles it: `countersign budget settle "
                f"{self.call_id} --made` or `--not-made`. If no call was made, use call.release() in the block"
            )


class LlmCallBlock:
    """Returned by `llm_call`: a `with` or `async with` block, usable once, or a decorator."""

    def __init__(self, asking: CallRequest) -> None:
        self._asking = asking
        self._call: LlmCall | None = None
        self._span = ExitStack()

    def __enter__(self) -> LlmCall:
        if self._call is not None:
            raise MisuseError(
                "this llm_call was used already; one block is one call, make another with llm_call(...)"
            )
        with ExitStack() as opening:
            facts = _request_attributes(self._asking)
            tell = opening.enter_context(tracing.model_span(f"chat {self._asking.model}", facts))
            self._call = LlmCall(self._asking, tell)
            self._span = opening.pop_all()
        return self._call

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._call is None:
            raise MisuseError("this llm_call was left before it was entered")
        try:
            self._call.leave(error)
        except BaseException as left:
            self._span.__exit__(type(left), left, left.__traceback__)
            raise
        self._span.__exit__(kind, error, trace)

    async def __aenter__(self) -> LlmCall:
        return self.__enter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.__exit__(kind, error, trace)

    def __call__(self, fn: F) -> F:
        """Decorate a function, plain or async, that calls a model and returns its response; each call is counted."""
        if inspect.iscoroutinefunction(fn):

            @wraps(fn)
            async def awaited(*args: Any, **kwargs: Any) -> Any:
                with LlmCallBlock(self._asking) as call:
                    response = await fn(*args, **kwargs)
                    _record(call, response)
                return response

            return cast(F, awaited)

        @wraps(fn)
        def called(*args: Any, **kwargs: Any) -> Any:
            with LlmCallBlock(self._asking) as call:
                response = fn(*args, **kwargs)
                _record(call, response)
            return response

        return cast(F, called)


def llm_call(
    model: str,
    *,
    max_tokens: int | None = None,
    input_tokens: int | None = None,
    prompt: object = None,
    timeout: float | str | Decimal | None = None,
    run: str | None = None,
    budgets: Sequence[Budget] = (),
    reasoning: bool = False,
    unknown_tokens: bool = False,
    not_made: tuple[type[BaseException], ...] = (),
    runtime: Runtime | None = None,
) -> LlmCallBlock:
    """Reserve in the budgets, call a model, record the usage: `with llm_call(...) as call`, `async with`, or a
    decorator.

    `max_tokens` is the limit you give the model; `input_tokens` the most you send, or `prompt` what you send, as text
    or JSON (text has at most as many tokens as bytes; pictures and sound have more); `timeout` the most seconds it may
    take. Only those that a budget needs are required. `run` names the run; inside a transaction it is the transaction's
    key. `not_made` are exceptions of your client which mean that no call was made. `reasoning=True` stores the model's
    reasoning in the journal, and it may contain secrets. `unknown_tokens=True` records a response without usage.

    Entering raises:
        BudgetExceeded: the call would exceed a budget; the model was not called.
        PriceUnknown: a money budget applies and the model has no price.
        MisuseError: a budget needs a bound that is missing.
    """
    bounds = Bounds(input_bound(input_tokens, prompt), max_tokens, timeout)
    return LlmCallBlock(
        CallRequest(
            model=_named("model", model),
            bounds=bounds,
            run=None if run is None else _named("run", run),
            budgets=tuple(budgets),
            reasoning=reasoning,
            unknown_tokens=unknown_tokens,
            not_made=not_made,
            runtime=runtime,
        )
    )


def record_llm(
    response: object,
    *,
    model: str | None = None,
    seconds: float | str | Decimal | None = None,
    run: str | None = None,
    budgets: Sequence[Budget] = (),
    reasoning: bool = False,
    unknown_tokens: bool = False,
    runtime: Runtime | None = None,
) -> LlmRecord:
    """Record a call that was made without a reservation: it counts even if a budget is exceeded.

    `model` is the requested model; without it, the response's. `LlmRecord.over` lists the budgets that are now over
    their limit, `uncounted` those that could not count it.

    Raises:
        UsageUnknown: the response does not state its usage, or, with no `model`, its model.
        SettingsError: the files of budgets or prices are invalid.
        MisuseError: `model`, `run` or `seconds` is invalid, or a budget with the same name differs.
        JournalSealed: its reasoning should be stored, and there is no key to seal it with.
    """
    said = None if model is None else _named("model", model)
    bounds, of = Bounds(seconds=seconds), None if run is None else _named("run", run)
    usage = read_usage(response, unknown_tokens=unknown_tokens, reasoning=reasoning)
    named = said or usage.model
    if named is None or not is_name(named, _MAX_NAME):
        raise UsageUnknown(
            *(type(response).__name__, ["model"]),
            lacks="by which model it was given",
            advice="If the response does not, say model=... yourself.",
        )
    asking = CallRequest(named, bounds, run=of, budgets=tuple(budgets), runtime=runtime)
    ledger, of_run = asking.resolved()
    with tracing.model_span(f"chat {named}", _request_attributes(asking)) as tell:
        record = ledger.record(of_run, named, usage, asking.bounds.milliseconds, asking.budgets)
        tell(_response_attributes(record))
    return record


def _record(call: LlmCall, response: object) -> None:
    """Record the response; if only its usage is unreadable, keep the response in the error, since it was paid for."""
    try:
        call.record(response)
    except UsageUnknown as error:
        error.response = response
        raise


def _nothing(_: Mapping[str, object]) -> None:
    """Ignore attributes after the span has ended."""


def _named(what: str, name: str) -> str:
    if not is_name(name, _MAX_NAME):
        raise MisuseError(f"the {what} of a call is its name, 1 to {_MAX_NAME} characters, not {name!r}")
    return name


def _default() -> Runtime:
    from countersign.process_runtime import default_runtime

    return default_runtime()


def _request_attributes(asking: CallRequest) -> dict[str, object]:
    """Span attributes known before the call."""
    return {
        "gen_ai.operation.name": "chat",
        "gen_ai.request.model": asking.model,
        "gen_ai.request.max_tokens": asking.bounds.output_tokens,
    }


def _response_attributes(record: LlmRecord) -> dict[str, object]:
    """Span attributes of the response."""
    usage, billed = record.usage, record.usage.billed
    return {
        "gen_ai.provider.name": _PROVIDERS.get(usage.provider or "", usage.provider),
        "gen_ai.response.model": usage.model,
        "gen_ai.response.finish_reasons": list(usage.finish_reasons) or None,
        "gen_ai.usage.input_tokens": None
        if billed is None
        else billed.input + billed.cached + billed.written,
        "gen_ai.usage.output_tokens": None if billed is None else billed.output,
        "gen_ai.usage.cache_read.input_tokens": usage.cached_tokens,
        "gen_ai.usage.cache_creation.input_tokens": usage.written_tokens,
        "gen_ai.usage.reasoning.output_tokens": usage.reasoning_tokens,
        "countersign.call_id": record.call_id,
        "countersign.cost": None if record.cost is None else f"{record.cost:f} {record.currency}",
    }
