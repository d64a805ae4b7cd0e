"""The names of things: digests over labelled canonical bytes, lower-case hex (design section 6).

Each label ends in a newline and a version, so that no digest of one kind can ever equal a digest of another
and a second version can live beside the first. Both sides compute every name themselves; a name that arrives
is only compared.
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
    """Name the args of a call.

    Raises:
        AdmissionError: the value has no canonical form.
    """
    return labelled_digest(ARGS_LABEL, canonicalize(args))


def call_key(*, agent: str, run_key: str, tool: str, args: object, n: int = 0) -> str:
    """Name the logical call; it is the idempotency key the tool gets.

    `n` counts intended repeats of the same call within one run: 0, 1, ... It is taken from the args as the
    agent staged them; an accepted edit keeps it, so no verifier recomputes it.

    Raises:
        AdmissionError: a value has no canonical form.
    """
    return labelled_digest(
        CALL_LABEL, canonicalize({"agent": agent, "run_key": run_key, "tool": tool, "args": args, "n": n})
    )


def txn_id(*, agent: str, run_key: str) -> str:
    """Name a transaction: the same run key of the same agent is the same transaction, from any process."""
    return labelled_digest(TXN_ID_LABEL, canonicalize({"agent": agent, "run_key": run_key}))


def independent_txn_id(*, agent: str, run_key: str, call_key: str) -> str:
    """Name the transaction of one effect of `transaction(independent=True)` (design section 7)."""
    return labelled_digest(
        TXN_ID_LABEL, canonicalize({"agent": agent, "run_key": run_key, "call_key": call_key})
    )


def effect_id(*, txn: str, call_key: str) -> str:
    """Name an effect: one call within one transaction, whatever its revision."""
    return labelled_digest(EFFECT_ID_LABEL, canonicalize({"txn": txn, "call_key": call_key}))


def txn_digest(*, effect_digests: Sequence[str]) -> str:
    """Name exactly this list of effects in this order: none can be dropped, added or reordered."""
    return labelled_digest(TXN_LABEL, canonicalize(list(effect_digests)))


def compensation_call_key(*, effect_id: str, tool: str) -> str:
    """Name the call that takes one fired effect back: one forward effect has one, in any process."""
    return labelled_digest(COMPENSATE_LABEL, canonicalize({"effect_id": effect_id, "tool": tool}))


def tool_digest(manifest: object) -> str:
    """Name a tool manifest, given as its canonical JSON value (`ToolManifest.digest` does this for you)."""
    return labelled_digest(TOOL_LABEL, canonicalize(manifest))


def body_digest(body: bytes) -> str:
    """SHA-256 of a raw request body, base64url without padding, as the `bd` claim of a proof carries it."""
    return base64.urlsafe_b64encode(hashlib.sha256(body).digest()).rstrip(b"=").decode("ascii")
