"""Every error the SDK raises, in one tree. Each carries a stable code and says what may be done next.

    CountersignError
      MisuseError              the caller's bug: nothing was sent, nothing fired
        OutsideTransaction       a gated tool was called where no transaction is watching
        NotStageable             this call cannot be described as bytes that people could approve
        PlaceholderUsed          a staged call's placeholder was used as if it were a result
        RegistrationError        a tool was declared in a way that cannot be kept
        RerunDiffers             the body stages another list of calls at every rerun
        StepsRefused             a list of steps cannot be run as it stands; every fault is named, no step ran
        PriceUnknown             a budget counts money and the model has no price
        NotRecorded              a reconstruction needs an answer that no journal holds
        PackageMissing           an integration's own package is not installed
        SettingsError            an address, a key file or an environment variable is missing or unsafe
      Stopped                  somebody or something said no, or not yet; nothing more fires
        Denied                   the policy or a person refused
        ReviewPending            people are being asked
        ReviewRequired           people would have to agree to a live effect, which cannot wait for them
        AlreadyRedeemed          this run key has been spent
        ReleaseRefused           a release or receipt failed a numbered verification step
        ReleaseLapsed            permission to fire ran out and was not renewed; nothing stands, or it may fire yet
        IsolationConflict        what live effects read was changed by somebody else
        BudgetExceeded           a budget has no room for a call to a model; it was not made
        SavepointLost            an inner block could not be taken back alone; nothing of the outer stands
        SessionLost              something else ended the database transaction of live work; nothing of it is kept
        Edited                   other arguments are in force than this agent staged, and it did not say it takes them
      FireError                firing began and did not end well (this family: fired.py)
        EffectFailed             a tool failed and is known not to have acted
        PartlyFired              permission to fire ran out in the middle, and something that fired stands
        OutcomeUnknown           nobody knows yet whether a tool acted
        LiveCommitFailed         staged effects fired, but a live adapter could not commit
      WorldError               the world's fault: try again later
        ServiceUnavailable       the service does not answer, or not sensibly
        ServiceRefused           the service answered with a problem, `.problem_code`
          OverQuota                more than this agent may ask for at once; `.retry_after` says when it may
        TransactionBusy          another process owns this transaction
        ResourceBusy             another Serialize transaction has a resource to itself
        CommitUnknown            raised by live adapters: a commit got no answer, and may stand
        WorkerStopping           this process was asked to stop and begins nothing more
        JournalError             the journal cannot be read or written
          JournalSealed            what is secret in the journal cannot be read or written: its key is not here
          LeaseLost                this run does not own its transaction any more
      UsageUnknown             a call to a model was made, and its response does not say what it used
      CallNotRecorded          the block of a call to a model ended, and nobody said what became of it
      ReplayDiverged           a step does not do what was recorded of it
      ModelStopped             a model's message is no whole one: cut off, refused or filtered
      TurnLimit                a model was asked as often as the program allows, and still called tools
      ToolRaised               what a tool or live adapter raised that was given secrets, without the text
      NotDone                  raised by tools: "I know that nothing happened"
      RestUnknown              raised by RestApi: the call may have been carried out
      McpToolError             an MCP server answered a call with an error; nobody can tell whether it had acted
      ServiceFailed            raised by countersign.testing: its service did not begin, or not do what was asked
      VoteRefused              raised by countersign.testing: the service did not take a person's vote
    IndependentFailures        an ExceptionGroup of the above, from transaction(independent=True)

An agent reads these messages. They quote nothing that is secret. What a call was about is named by `NotStageable`,
`IsolationConflict` and `ReplayDiverged`; a tool's or a service's own words by `NotDone`, `RestUnknown` and
`EffectFailed`; the others have names, ids and reasons.
"""

from countersign.errors.base import (
    CommitUnknown,
    CountersignError,
    JournalError,
    JournalSealed,
    LeaseLost,
    MisuseError,
    NotStageable,
    OutsideTransaction,
    OverQuota,
    PlaceholderUsed,
    RegistrationError,
    RerunDiffers,
    ResourceBusy,
    ServiceRefused,
    ServiceUnavailable,
    SettingsError,
    Stopped,
    TransactionBusy,
    WorkerStopping,
    WorldError,
)
from countersign.errors.execution import (
    EffectFailed,
    FireError,
    IndependentFailures,
    LiveCommitFailed,
    NotDone,
    OutcomeUnknown,
    PartlyFired,
    ToolRaised,
)
from countersign.errors.stopped import (
    UNNAMED,
    AlreadyRedeemed,
    Denied,
    Edited,
    IsolationConflict,
    ReleaseLapsed,
    ReleaseRefused,
    ReviewPending,
    ReviewRequired,
    SavepointLost,
    SessionLost,
)

__all__ = [
    "UNNAMED",
    "AlreadyRedeemed",
    "CommitUnknown",
    "CountersignError",
    "Denied",
    "Edited",
    "EffectFailed",
    "FireError",
    "IndependentFailures",
    "IsolationConflict",
    "JournalError",
    "JournalSealed",
    "LeaseLost",
    "LiveCommitFailed",
    "MisuseError",
    "NotDone",
    "NotStageable",
    "OutcomeUnknown",
    "OutsideTransaction",
    "OverQuota",
    "PartlyFired",
    "PlaceholderUsed",
    "RegistrationError",
    "ReleaseLapsed",
    "ReleaseRefused",
    "RerunDiffers",
    "ResourceBusy",
    "ReviewPending",
    "ReviewRequired",
    "SavepointLost",
    "ServiceRefused",
    "ServiceUnavailable",
    "SessionLost",
    "SettingsError",
    "Stopped",
    "ToolRaised",
    "TransactionBusy",
    "WorkerStopping",
    "WorldError",
]

for _name in __all__:
    if isinstance(globals()[_name], type):
        globals()[_name].__module__ = __name__  # as it is imported, so a traceback names it
del _name
