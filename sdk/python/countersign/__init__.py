"""Stage irreversible effects, and fire each one once, after it was released.

    from countersign import tool, transaction

The names below are loaded on first use, so that a program that needs only `countersign.contract` (the service, a
gateway, a verifier) does not load the runtime.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from countersign.adapters import LiveAdapter, LiveCall, LiveSession, SQLiteAdapter
    from countersign.adapters.agent_memory import AgentMemory
    from countersign.adapters.files import FilesAdapter
    from countersign.adapters.memory import MemoryAdapter
    from countersign.adapters.postgres import PostgresAdapter
    from countersign.errors import (
        AlreadyRedeemed,
        CountersignError,
        Denied,
        Edited,
        EffectFailed,
        FireError,
        IndependentFailures,
        IsolationConflict,
        JournalError,
        JournalSealed,
        LeaseLost,
        LiveCommitFailed,
        MisuseError,
        NotDone,
        NotStageable,
        OutcomeUnknown,
        OutsideTransaction,
        OverQuota,
        PartlyFired,
        PlaceholderUsed,
        RegistrationError,
        ReleaseLapsed,
        ReleaseRefused,
        RerunDiffers,
        ResourceBusy,
        ReviewPending,
        ReviewRequired,
        SavepointLost,
        ServiceRefused,
        ServiceUnavailable,
        SessionLost,
        SettingsError,
        Stopped,
        ToolRaised,
        TransactionBusy,
        WorldError,
    )
    from countersign.errors.pending import ApprovalRequirement, PendingReview, Proposal, Question
    from countersign.errors.reasons import DenyReason
    from countersign.journal.location import JournalUrl
    from countersign.live.isolation import Abort, Retry, Serialize
    from countersign.llm.budgets import Budget
    from countersign.llm.calls import LlmCall, llm_call, record_llm
    from countersign.llm.errors import BudgetExceeded, CallNotRecorded, PriceUnknown, UsageUnknown
    from countersign.llm.ledger import LlmRecord
    from countersign.llm.usage import Usage
    from countersign.process_runtime import default_runtime, use_runtime
    from countersign.recovery.recovery import resume, resume_async
    from countersign.runtime import Runtime
    from countersign.settings import Settings
    from countersign.simulation.dry_run_report import DryRun, ForeseenEffect
    from countersign.simulation.replay import replay
    from countersign.simulation.replay_report import (
        Divergence,
        NotRecorded,
        ReplayDiverged,
        ReplayedCall,
        ReplayResult,
    )
    from countersign.tools.context import FiringEffect, current_effect
    from countersign.tools.definition import DidNotHappen, Happened, ProbeAnswer, Tool, Unsure
    from countersign.tools.registry import ToolRegistry
    from countersign.tools.rest import RestApi, RestResponse, RestUnknown
    from countersign.tools.results import Placeholder
    from countersign.tools.tool import probe, tool, tool_of
    from countersign.transactions.opening import transaction
    from countersign.transactions.registered_steps import step
    from countersign.transactions.rerun import run_transaction
    from countersign.transactions.run_steps import run_steps, run_steps_async, step_of
    from countersign.transactions.schedule import StepsRefused
    from countersign.transactions.transaction import Transaction

_HOMES = {
    "adapters": ("LiveAdapter", "LiveCall", "LiveSession", "SQLiteAdapter"),
    "adapters.files": ("FilesAdapter",),
    "adapters.agent_memory": ("AgentMemory",),
    "adapters.memory": ("MemoryAdapter",),
    "adapters.postgres": ("PostgresAdapter",),
    "tools.context": ("FiringEffect", "current_effect"),
    "errors": tuple(
        "AlreadyRedeemed CountersignError Denied Edited EffectFailed FireError IndependentFailures JournalError "
        "JournalSealed LeaseLost LiveCommitFailed MisuseError IsolationConflict NotDone NotStageable OutcomeUnknown "
        "OutsideTransaction OverQuota PartlyFired PlaceholderUsed RegistrationError ReleaseLapsed ReleaseRefused "
        "RerunDiffers ResourceBusy ReviewPending ReviewRequired SavepointLost ServiceRefused ServiceUnavailable "
        "SessionLost SettingsError Stopped ToolRaised TransactionBusy WorldError".split()
    ),
    "live.isolation": ("Abort", "Retry", "Serialize"),
    "journal.location": ("JournalUrl",),
    "llm.budgets": ("Budget",),
    "llm.calls": ("LlmCall", "llm_call", "record_llm"),
    "llm.errors": ("BudgetExceeded", "CallNotRecorded", "PriceUnknown", "UsageUnknown"),
    "llm.ledger": ("LlmRecord",),
    "llm.usage": ("Usage",),
    "tools.results": ("Placeholder",),
    "tools.definition": ("DidNotHappen", "Happened", "ProbeAnswer", "Tool", "Unsure"),
    "errors.pending": ("ApprovalRequirement", "PendingReview", "Proposal", "Question"),
    "errors.reasons": ("DenyReason",),
    "simulation.replay_report": (
        "Divergence",
        "NotRecorded",
        "ReplayDiverged",
        "ReplayResult",
        "ReplayedCall",
    ),
    "simulation.dry_run_report": ("DryRun", "ForeseenEffect"),
    "simulation.replay": ("replay",),
    "transactions.registered_steps": ("step",),
    "transactions.rerun": ("run_transaction",),
    "recovery.recovery": ("resume", "resume_async"),
    "tools.rest": ("RestResponse", "RestApi", "RestUnknown"),
    "transactions.run_steps": ("run_steps", "run_steps_async", "step_of"),
    "transactions.schedule": ("StepsRefused",),
    "process_runtime": ("default_runtime", "use_runtime"),
    "runtime": ("Runtime",),
    "settings": ("Settings",),
    "tools.registry": ("ToolRegistry",),
    "tools.tool": ("probe", "tool", "tool_of"),
    "transactions.opening": ("transaction",),
    "transactions.transaction": ("Transaction",),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

__all__ = [
    "Abort",
    "AgentMemory",
    "AlreadyRedeemed",
    "ApprovalRequirement",
    "Budget",
    "BudgetExceeded",
    "CallNotRecorded",
    "CountersignError",
    "Denied",
    "DenyReason",
    "DidNotHappen",
    "Divergence",
    "DryRun",
    "Edited",
    "EffectFailed",
    "FilesAdapter",
    "FireError",
    "FiringEffect",
    "ForeseenEffect",
    "Happened",
    "IndependentFailures",
    "IsolationConflict",
    "JournalError",
    "JournalSealed",
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
    "ProbeAnswer",
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
    "RestApi",
    "RestResponse",
    "RestUnknown",
    "Retry",
    "ReviewPending",
    "ReviewRequired",
    "Runtime",
    "SQLiteAdapter",
    "SavepointLost",
    "Serialize",
    "ServiceRefused",
    "ServiceUnavailable",
    "SessionLost",
    "Settings",
    "SettingsError",
    "StepsRefused",
    "Stopped",
    "Tool",
    "ToolRaised",
    "ToolRegistry",
    "Transaction",
    "TransactionBusy",
    "Unsure",
    "Usage",
    "UsageUnknown",
    "WorldError",
    "current_effect",
    "default_runtime",
    "llm_call",
    "probe",
    "record_llm",
    "replay",
    "resume",
    "resume_async",
    "run_steps",
    "run_steps_async",
    "run_transaction",
    "step",
    "step_of",
    "tool",
    "tool_of",
    "transaction",
    "use_runtime",
]


def __getattr__(name: str) -> Any:
    home = _HOME_OF.get(name)
    if home is None:
        raise AttributeError(f"module 'countersign' has no attribute {name!r}")
    return getattr(import_module(f"countersign.{home}"), name)


def __dir__() -> list[str]:
    return [*__all__]
