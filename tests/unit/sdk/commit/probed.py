"""A payment whose other side can be asked, for tests of probes."""

from collections.abc import Callable
from types import SimpleNamespace

from countersign import Unsure, current_effect, probe
from countersign.concurrency import SyncExecutor
from tests.fakes.desk import Desk, charge_undone_by_void
from tests.fakes.running import order_tool, refusing_tool

SECONDS = 20.0  # that a test waits for what has to come, never for time to pass


def payment(desk: Desk, answer, error=None, *, acts: bool = True, **options):
    """A tool that acts and raises, and its probe; `answer` is what that answers, or a function that does."""
    asked = []

    @order_tool(desk, probe="find_pay", **options)
    def pay(order_id: str, cents: int) -> dict[str, int]:
        if acts:
            desk.act("pay", order_id, cents)
        raise error or ConnectionError("lost")

    found = SimpleNamespace(pay=pay, asked=asked, answer=answer if callable(answer) else lambda: answer)

    @probe("find_pay", registry=desk.registry)
    def find_pay(cents: int, order_id: str):
        asked.append((order_id, cents, current_effect()))
        return found.answer()

    return found


def unsure() -> Unsure:
    return Unsure()


def sleeping(desk: Desk, monkeypatch, then: Callable[[], None] = lambda: None) -> list[float]:
    """Time passes at once, and something may happen meanwhile."""
    slept: list[float] = []

    async def sleep(_: SyncExecutor, seconds: float) -> None:
        slept.append(seconds)
        desk.clock.advance(seconds)
        then()

    monkeypatch.setattr(SyncExecutor, "sleep", sleep)
    return slept


def raising(error: BaseException) -> Callable:
    def answer(*_):
        raise error

    return answer


def probed_void(desk: Desk, answer: Callable, **options) -> tuple:
    """A charge whose `void` is lost, with a probe of its own; and what says that the charge is not wanted."""

    @order_tool(desk, resource=("Charge", "charge_id"), probe="voided", **options)
    def void(charge_id: str) -> None:
        desk.act("void", charge_id)
        raise TimeoutError("slow")

    probe("voided", registry=desk.registry)(answer)
    return charge_undone_by_void(desk), refusing_tool(desk)
