"""Every error the SDK raises, in one tree. Each has a stable code, and its text says what to do next.

    CountersignError
        MisuseError              a bug in the caller: nothing was sent, nothing fired
            OutsideTransaction       a gated tool was called outside a transaction
            NotStageable             this call cannot be described as bytes that people could approve
            PlaceholderUsed          a staged call's placeholder was used as if it were a result
            RegistrationError        a tool's declaration is invalid
            RerunDiffers             the body stages another list of calls at every rerun
            StepsRefused             a list of steps cannot be run; every fault is named, no step ran
            PriceUnknown             a budget counts money and the model has no price
            NotRecorded              a replay in reconstruct mode needs a result that no journal contains
            PackageMissing           an integration's own package is not installed
            SettingsError            an address, a key file or an environment variable is missing or unsafe
        Stopped                  refused, or not allowed yet; nothing more fires
            Denied                   the policy or a person refused
            ReviewPending            a review is open
            ReviewRequired           a live effect would need approval, and it cannot wait
            AlreadyRedeemed          this run key has been redeemed before
            ReleaseRefused           a release or receipt failed a numbered verification step
            ReleaseLapsed            the fire window expired and was not renewed; see `.may_fire`
            IsolationConflict                    what live effects read was changed by another transaction
            BudgetExceeded           a call to a model would exceed a budget; it was not made
            SavepointLost            an inner block could not be rolled back alone; the outer one is undone
            SessionLost              the database transaction of live work was ended from outside
            Edited                   a reviewer's edit is in force, and this program did not accept edits
        FireError                firing began and did not complete (this family: execution.py)
            EffectFailed             a tool failed and is known not to have acted
            PartlyFired              the fire window expired part-way, and some effects remain in effect
            OutcomeUnknown           it is not known whether a tool acted
            LiveCommitFailed         staged effects fired, but a live adapter could not commit
        WorldError               an external fault: try again later
            ServiceUnavailable       the service does not respond, or not as the API specifies
            ServiceRefused           the service responded with a problem, `.problem_code`
                OverQuota                this agent exceeds a quota; `.retry_after` says when to retry
            TransactionBusy          another process owns this transaction
            ResourceBusy             another Serialize transaction has locked a resource
            CommitUnknown            raised by live adapters: the result of a commit is not known
            WorkerStopping           this process was asked to stop and begins nothing more
            JournalError             the journal cannot be read or written
                JournalSealed            secrets in the journal cannot be read or written: the key is missing
                LeaseLost                this run no longer owns its transaction
        UsageUnknown             a call to a model was made, and its response does not state its usage
        CallNotRecorded          the block of a call to a model ended without recording its result
        ReplayDiverged           a step does not do what was recorded of it
        ModelStopped             a model's message is incomplete: cut off, refused or filtered
        TurnLimit                a model reached the turn limit and still called tools
        ToolRaised               what a tool or live adapter with secret arguments raised, without its text
        NotDone                  raised by tools: the call is known not to have acted
        RestUnknown              raised by RestApi: the call may have been carried out
        McpToolError             an MCP server returned an error; it is not known whether it had acted
        ServiceFailed            raised by countersign.testing: the service did not start or failed a command
        VoteRefused              raised by countersign.testing: the service refused a person's vote
    IndependentFailures        an ExceptionGroup of the above, from transaction(independent=True)

Agents read these messages, so they quote no secrets. Only `NotStageable`, `IsolationConflict` and `ReplayDiverged` name
what a call was about. Only `NotDone`, `RestUnknown` and `EffectFailed` quote a tool or a service. The others contain
names, ids and reasons.
"""

from countersign.errors.base import CommitUnknown as CommitUnknown
from countersign.errors.base import CountersignError as CountersignError
from countersign.errors.base import JournalError as JournalError
from countersign.errors.base import JournalSealed as JournalSealed
from countersign.errors.base import LeaseLost as LeaseLost
from countersign.errors.base import MisuseError as MisuseError
from countersign.errors.base import NotStageable as NotStageable
from countersign.errors.base import OutsideTransaction as OutsideTransaction
from countersign.errors.base import OverQuota as OverQuota
from countersign.errors.base import PlaceholderUsed as PlaceholderUsed
from countersign.errors.base import RegistrationError as RegistrationError
from countersign.errors.base import RerunDiffers as RerunDiffers
from countersign.errors.base import ResourceBusy as ResourceBusy
from countersign.errors.base import ServiceRefused as ServiceRefused
from countersign.errors.base import ServiceUnavailable as ServiceUnavailable
from countersign.errors.base import SettingsError as SettingsError
from countersign.errors.base import Stopped as Stopped
from countersign.errors.base import TransactionBusy as TransactionBusy
from countersign.errors.base import WorkerStopping as WorkerStopping
from countersign.errors.base import WorldError as WorldError
from countersign.errors.execution import EffectFailed as EffectFailed
from countersign.errors.execution import FireError as FireError
from countersign.errors.execution import IndependentFailures as IndependentFailures
from countersign.errors.execution import LiveCommitFailed as LiveCommitFailed
from countersign.errors.execution import NotDone as NotDone
from countersign.errors.execution import OutcomeUnknown as OutcomeUnknown
from countersign.errors.execution import PartlyFired as PartlyFired
from countersign.errors.execution import ToolRaised as ToolRaised
from countersign.errors.pending import UNNAMED as UNNAMED
from countersign.errors.pending import ReviewPending as ReviewPending
from countersign.errors.stopped import AlreadyRedeemed as AlreadyRedeemed
from countersign.errors.stopped import Denied as Denied
from countersign.errors.stopped import Edited as Edited
from countersign.errors.stopped import IsolationConflict as IsolationConflict
from countersign.errors.stopped import ReleaseLapsed as ReleaseLapsed
from countersign.errors.stopped import ReleaseRefused as ReleaseRefused
from countersign.errors.stopped import ReviewRequired as ReviewRequired
from countersign.errors.stopped import SavepointLost as SavepointLost
from countersign.errors.stopped import SessionLost as SessionLost

for _error in [one for one in globals().values() if isinstance(one, type)]:
    _error.__module__ = __name__  # the import path users see, for tracebacks
del _error
