"""`resume()`: finish what the journal still holds, blocking or async. What it does is recovery.py's business."""

from __future__ import annotations

from countersign.recovery.recovery import Resumed, resume_all
from countersign.runtime import Runtime, default_runtime
from countersign.tools.current import require_no_probe
from countersign.waiting import run


def resume(runtime: Runtime | None = None) -> list[Resumed]:
    """Finish what can be finished, on this thread. Import the modules that define the tools first.

    Transactions with async tools need `resume_async`.
    """
    require_no_probe("resumes transactions")
    chosen = runtime or default_runtime()
    return run(resume_all(chosen.engine(chosen.sync_waits())))


async def resume_async(runtime: Runtime | None = None) -> list[Resumed]:
    """Finish what can be finished, on the event loop; plain and async tools alike."""
    require_no_probe("resumes transactions")
    chosen = runtime or default_runtime()
    waits = chosen.async_waits()
    async with waits.opened():
        return await resume_all(chosen.engine(waits))
