"""The contract of Countersign: strict bytes, names, tokens, states, and how each is verified.

Both sides use it and a second implementation can be written from it. Nothing here does IO, reads a clock or
knows a framework; `now` is a parameter. Wire models are in `countersign.contract.wire`.
"""

from .admission import ARGS_LIMITS, JSON, RESERVED_KEYS, Limits, admit, load
from .canonical import MAX_SAFE_INTEGER, canonicalize
from .codes import PROBLEM_TYPE_PREFIX, DenyCode, ErrorCode
from .effect import Compensation, Effect, Resource, is_digest, require_digest
from .errors import (
    AdmissionError,
    BadKeyError,
    ContractError,
    IllegalMoveError,
    ManifestError,
    PointerError,
    VerificationError,
    WireError,
)
from .jws import TYP_PROOF, TYP_RECEIPT, TYP_RELEASE, Opened, open_token, sign
from .keys import KeySet, PrivateKey, PublicKey, thumbprint
from .manifest import (
    CompensationRule,
    Lane,
    MoneyField,
    ResourceRule,
    Risk,
    ToolManifest,
    load_manifest,
    manifest_file,
    require_tool_name,
)
from .names import (
    args_digest,
    body_digest,
    call_key,
    compensation_call_key,
    effect_id,
    independent_txn_id,
    tool_digest,
    txn_digest,
    txn_id,
)
from .pointers import compensation_args, pointer_to, pointer_tokens, reads_result, resolve_pointer
from .proof import PROOF_STEPS, ProofClaims, make_proof, verify_proof
from .receipt import ReceiptClaims, ReceiptEffect
from .receipt_verify import RECEIPT_STEPS, verify_receipt
from .release import DecisionClaims, EffectDetail, ReleaseClaims
from .sentence import SentencePart, split_sentence
from .states import (
    EFFECT_MOVES,
    ENDED_UNSPENT,
    TERMINAL,
    TXN_MOVES,
    EffectState,
    Mode,
    Outcome,
    TaskAnswer,
    TaskKind,
    TxnState,
    Verdict,
    can_move,
    require_move,
)
from .steps import Step
from .verify import STEPS, Expectation, VerifiedRelease, verify_release, verify_transaction

__all__ = [
    "ARGS_LIMITS",
    "EFFECT_MOVES",
    "ENDED_UNSPENT",
    "JSON",
    "MAX_SAFE_INTEGER",
    "PROBLEM_TYPE_PREFIX",
    "PROOF_STEPS",
    "RECEIPT_STEPS",
    "RESERVED_KEYS",
    "STEPS",
    "TERMINAL",
    "TXN_MOVES",
    "TYP_PROOF",
    "TYP_RECEIPT",
    "TYP_RELEASE",
    "AdmissionError",
    "BadKeyError",
    "Compensation",
    "CompensationRule",
    "ContractError",
    "DecisionClaims",
    "DenyCode",
    "Effect",
    "EffectDetail",
    "EffectState",
    "ErrorCode",
    "Expectation",
    "IllegalMoveError",
    "KeySet",
    "Lane",
    "Limits",
    "ManifestError",
    "Mode",
    "MoneyField",
    "Opened",
    "Outcome",
    "PointerError",
    "PrivateKey",
    "ProofClaims",
    "PublicKey",
    "ReceiptClaims",
    "ReceiptEffect",
    "ReleaseClaims",
    "Resource",
    "ResourceRule",
    "Risk",
    "SentencePart",
    "Step",
    "TaskAnswer",
    "TaskKind",
    "ToolManifest",
    "TxnState",
    "Verdict",
    "VerificationError",
    "VerifiedRelease",
    "WireError",
    "admit",
    "args_digest",
    "body_digest",
    "call_key",
    "can_move",
    "canonicalize",
    "compensation_args",
    "compensation_call_key",
    "effect_id",
    "independent_txn_id",
    "is_digest",
    "load",
    "load_manifest",
    "make_proof",
    "manifest_file",
    "open_token",
    "pointer_to",
    "pointer_tokens",
    "reads_result",
    "require_digest",
    "require_move",
    "require_tool_name",
    "resolve_pointer",
    "sign",
    "split_sentence",
    "thumbprint",
    "tool_digest",
    "txn_digest",
    "txn_id",
    "verify_proof",
    "verify_receipt",
    "verify_release",
    "verify_transaction",
]
