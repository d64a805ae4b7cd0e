"""The names a call to a model has in a trace: OpenTelemetry's semantic conventions for generative AI.

Sizes, names and reasons of finishing; never what was said, nor the reasoning that a journal may keep. Input counts
cached tokens too, as the conventions have it, whichever way the vendor counts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from countersign.llm.calling import Asking
    from countersign.llm.ledger import LlmRecord

_PROVIDERS: Final = {"google": "gcp.gen_ai"}  # where the conventions' name is another


def asked(asking: Asking) -> dict[str, object]:
    """What is known before the call."""
    return {
        "gen_ai.operation.name": "chat",
        "gen_ai.request.model": asking.model,
        "gen_ai.request.max_tokens": asking.bounds.output_tokens,
    }


def answered(record: LlmRecord) -> dict[str, object]:
    """What its response says of itself."""
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
