"""Digests and ids: SHA-256 over labelled canonical bytes, lower-case hex (design section 6).

Each label ends in a version and a newline, so that digests of different kinds never collide and a second version can
coexist with the first. Both sides compute every digest themselves and only compare what they receive.
"""

import base64
import hashlib
from collections.abc import Sequence
from typing import Final

from .canonical import canonicalize

ARGS_LABEL: Final = b"countersign/args/v1\n"
CALL_LABEL: Final = b"countersign/call/v1\n"
TXN_ID_LABEL: Final = b"countersign/txn-id/v1\n"
EFFECT_ID_LABEL: Final = b"countersign/effect-id/v1\n"
EFFECT_LABEL: Final = b"countersign/effect/v1\n"
TXN_LABEL: Final = b"countersign/txn/v1\n"
COMPENSATE_LABEL: Final = b"countersign/compensate/v1\n"
TOOL_LABEL: Final = b"countersign/tool/v1\n"


def labelled_digest(label: bytes, canonical: bytes) -> str:
    """SHA-256 over a label and canonical bytes, as lower-case hex."""
    return hashlib.sha256(label + canonical).hexdigest()


def args_digest(*, args: object) -> str:
    """Digest of the args of a call.

    Raises:
        AdmissionError: the value has no canonical form.
    """
    return labelled_digest(ARGS_LABEL, canonicalize(args))


def call_key(*, agent: str, run_key: str, tool: str, args: object, n: int = 0) -> str:
    """The id of the logical call, which is the idempotency key the tool gets.

    `n` counts intended repeats of the same call within one run, from 0. It is computed from the args as the agent
    staged them. An accepted edit keeps it, so verifiers do not recompute it.

    Raises:
        AdmissionError: a value has no canonical form.
    """
    return labelled_digest(
        CALL_LABEL, canonicalize({"agent": agent, "run_key": run_key, "tool": tool, "args": args, "n": n})
    )


def txn_id(*, agent: str, run_key: str) -> str:
    """The transaction id: the same run key of the same agent gives the same transaction in any process."""
    return labelled_digest(TXN_ID_LABEL, canonicalize({"agent": agent, "run_key": run_key}))


def independent_txn_id(*, agent: str, run_key: str, call_key: str) -> str:
    """The transaction id of one effect of `transaction(independent=True)` (design section 7)."""
    return labelled_digest(
        TXN_ID_LABEL, canonicalize({"agent": agent, "run_key": run_key, "call_key": call_key})
    )


def effect_id(*, txn: str, call_key: str) -> str:
    """The effect id: one call within one transaction, at any revision."""
    return labelled_digest(EFFECT_ID_LABEL, canonicalize({"txn": txn, "call_key": call_key}))


def txn_digest(*, effect_digests: Sequence[str]) -> str:
    """Digest of exactly this list of effects in this order: none can be dropped, added or reordered."""
    return labelled_digest(TXN_LABEL, canonicalize(list(effect_digests)))


def compensation_call_key(*, effect_id: str, tool: str) -> str:
    """The call key of a compensation: one for each forward effect, the same in any process."""
    return labelled_digest(COMPENSATE_LABEL, canonicalize({"effect_id": effect_id, "tool": tool}))


def tool_digest(manifest: object) -> str:
    """Digest of a tool manifest, given as its canonical JSON value (`ToolManifest.digest` does this for you)."""
    return labelled_digest(TOOL_LABEL, canonicalize(manifest))


def body_digest(body: bytes) -> str:
    """SHA-256 of a raw request body, base64url without padding, as the `bd` claim of a proof carries it."""
    return base64.urlsafe_b64encode(hashlib.sha256(body).digest()).rstrip(b"=").decode("ascii")
