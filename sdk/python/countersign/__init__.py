"""Stage what cannot be taken back; fire it once, when it has been released.

    from countersign import tool, transaction

The names below are loaded when they are first used, so that a program that needs only `countersign.contract`
(the service, a gateway, a verifier) loads nothing of the runtime.
"""

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from countersign.adapters import LiveAdapter, LiveCall, LiveSession, SQLiteAdapter
    from countersign.adapters.files import FilesAdapter
    from countersign.adapters.memory import AgentMemory, MemoryAdapter
    from countersign.adapters.postgres import PostgresAdapter
    from countersign.current import FiringEffect, current_effect
    from countersign.errors import (
        AlreadyRedeemed,
        CountersignError,
        Denied,
        Edited,
        IndependentFailures,
        JournalError,
        LeaseLost,
        MisuseError,
        Moved,
        NotDone,
        NotStageable,
        OutsideTransaction,
        PlaceholderUsed,
        RegistrationError,
        ReleaseLapsed,
        ReleaseRefused,
        RerunDiffers,
        ResourceBusy,
        ReviewPending,
        SavepointLost,
        ServiceRefused,
        ServiceUnavailable,
        SettingsError,
        Stopped,
        TransactionBusy,
        WorldError,
    )
    from countersign.fire_errors import EffectFailed, FireError, LiveCommitFailed, OutcomeUnknown, PartlyFired
    from countersign.isolation import Abort, Retry, Serialize
    from countersign.journal_place import JournalUrl
    from countersign.llm.budgets import Budget
    from countersign.llm.calling import LlmCall, llm_call, record_llm
    from countersign.llm.errors import BudgetExceeded, CallNotRecorded, PriceUnknown, UsageUnknown
    from countersign.llm.ledger import LlmRecord
    from countersign.llm.shapes import Usage
    from countersign.placeholder import Placeholder
    from countersign.quotas import OverQuota
    from countersign.reasons import DenyReason, PendingReview, Question
    from countersign.registry import ToolRegistry
    from countersign.rehearsal.divergences import Divergence
    from countersign.rehearsal.errors import NotRecorded, ReplayDiverged
    from countersign.rehearsal.foreseen import DryRun, ForeseenEffect
    from countersign.rehearsal.replay import replay
    from countersign.rehearsal.replayed import ReplayedCall, ReplayResult
    from countersign.rerun import run_transaction
    from countersign.rest import RestAnswer, RestApi, RestUnknown
    from countersign.resuming import resume, resume_async
    from countersign.run_steps import StepsRefused, run_steps
    from countersign.runtime import Runtime, default_runtime, use_runtime
    from countersign.settings import Settings
    from countersign.tool import Tool, tool, tool_of
    from countersign.transaction import Transaction, transaction

_HOMES = {
    "adapters": ("LiveAdapter", "LiveCall", "LiveSession", "SQLiteAdapter"),
    "adapters.files": ("FilesAdapter",),
    "adapters.memory": ("AgentMemory", "MemoryAdapter"),
    "adapters.postgres": ("PostgresAdapter",),
    "current": ("FiringEffect", "current_effect"),
    "errors": (
        *("AlreadyRedeemed", "CountersignError", "Denied", "Edited", "IndependentFailures", "JournalError"),
        *("LeaseLost", "MisuseError", "Moved", "NotDone", "NotStageable", "OutsideTransaction"),
        *("PlaceholderUsed", "RegistrationError", "ReleaseLapsed", "ReleaseRefused", "RerunDiffers"),
        *("ResourceBusy", "ReviewPending", "SavepointLost", "ServiceRefused", "ServiceUnavailable"),
        *("SettingsError", "Stopped", "TransactionBusy", "WorldError"),
    ),
    "fire_errors": ("EffectFailed", "FireError", "LiveCommitFailed", "OutcomeUnknown", "PartlyFired"),
    "isolation": ("Abort", "Retry", "Serialize"),
    "journal_place": ("JournalUrl",),
    "llm.budgets": ("Budget",),
    "llm.calling": ("LlmCall", "llm_call", "record_llm"),
    "llm.errors": ("BudgetExceeded", "CallNotRecorded", "PriceUnknown", "UsageUnknown"),
    "llm.ledger": ("LlmRecord",),
    "llm.shapes": ("Usage",),
    "placeholder": ("Placeholder",),
    "quotas": ("OverQuota",),
    "reasons": ("DenyReason", "PendingReview", "Proposal", "Question"),
    "rehearsal.divergences": ("Divergence",),
    "rehearsal.errors": ("NotRecorded", "ReplayDiverged"),
    "rehearsal.foreseen": ("DryRun", "ForeseenEffect"),
    "rehearsal.replay": ("replay",),
    "rehearsal.replayed": ("ReplayResult", "ReplayedCall"),
    "rerun": ("run_transaction",),
    "resuming": ("resume", "resume_async"),
    "rest": ("RestAnswer", "RestApi", "RestUnknown"),
    "run_steps": ("StepsRefused", "run_steps"),
    "runtime": ("Runtime", "default_runtime", "use_runtime"),
    "settings": ("Settings",),
    "registry": ("ToolRegistry",),
    "tool": ("Tool", "tool", "tool_of"),
    "transaction": ("Transaction", "transaction"),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

__all__ = [
    "Abort",
    "AgentMemory",
    "AlreadyRedeemed",
    "Budget",
    "BudgetExceeded",
    "CallNotRecorded",
    "CountersignError",
    "Denied",
    "DenyReason",
    "Divergence",
    "DryRun",
    "Edited",
    "EffectFailed",
    "FilesAdapter",
    "FireError",
    "FiringEffect",
    "ForeseenEffect",
    "IndependentFailures",
    "JournalError",
    "JournalUrl",
    "LeaseLost",
    "LiveAdapter",
    "LiveCall",
    "LiveCommitFailed",
    "LiveSession",
    "LlmCall",
    "LlmRecord",
    "MemoryAdapter",
    "MisuseError",
    "Moved",
    "NotDone",
    "NotRecorded",
    "NotStageable",
    "OutcomeUnknown",
    "OutsideTransaction",
    "OverQuota",
    "PartlyFired",
    "PendingReview",
    "Placeholder",
    "PlaceholderUsed",
    "PostgresAdapter",
    "PriceUnknown",
    "Proposal",
    "Question",
    "RegistrationError",
    "ReleaseLapsed",
    "ReleaseRefused",
    "ReplayDiverged",
    "ReplayResult",
    "ReplayedCall",
    "RerunDiffers",
    "ResourceBusy",
    "RestAnswer",
    "RestApi",
    "RestUnknown",
    "Retry",
    "ReviewPending",
    "Runtime",
    "SQLiteAdapter",
    "SavepointLost",
    "Serialize",
    "ServiceRefused",
    "ServiceUnavailable",
    "Settings",
    "SettingsError",
    "StepsRefused",
    "Stopped",
    "Tool",
    "ToolRegistry",
    "Transaction",
    "TransactionBusy",
    "Usage",
    "UsageUnknown",
    "WorldError",
    "current_effect",
    "default_runtime",
    "llm_call",
    "record_llm",
    "replay",
    "resume",
    "resume_async",
    "run_steps",
    "run_transaction",
    "tool",
    "tool_of",
    "transaction",
    "use_runtime",
]


class _Package(ModuleType):
    """`countersign.tool` and `countersign.transaction` are functions, whichever modules of that name get
    imported.
    """

    def __setattr__(self, name: str, value: object) -> None:
        if not (name in _HOME_OF and isinstance(value, ModuleType)):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package


def __getattr__(name: str) -> Any:
    home = _HOME_OF.get(name)
    if home is None:
        raise AttributeError(f"module 'countersign' has no attribute {name!r}")
    return getattr(import_module(f"countersign.{home}"), name)


def __dir__() -> list[str]:
    return [*__all__]
