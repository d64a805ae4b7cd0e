"""An effect: one tool call with consequences outside the agent, described completely before it happens.

An `Effect` holds the canonical bytes of its args, never a Python object that could still change. What people see, vote
on and sign, and what the tool receives, all derive from those bytes (design section 6). The bytes must be canonical,
every digest must be well formed, and the effect id must be the digest of (txn, call_key).
"""

from binascii import unhexlify
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, TypeGuard, cast

from pydantic import ConfigDict

from . import digests
from .admission import JSON, admitted_bytes, load, load_canonical
from .compensation_sources import require_source
from .digests import canonicalize
from .errors import ContractError

VERSION: Final = 1
"""`v` of the effect digest. Changing the meaning of any field requires a new version."""

_DIGEST_CHARACTERS: Final = 64
_MAX_NAME: Final = 1024  # characters of a name, type or id


def is_digest(text: object) -> TypeGuard[str]:
    """Whether this is a SHA-256 in lower-case hex, the only digest form on the wire."""
    if not isinstance(text, str) or len(text) != _DIGEST_CHARACTERS:
        return False
    try:
        return unhexlify(text).hex() == text  # twice as fast as a regular expression
    except ValueError:
        return False


def require_digest(text: object, what: str) -> str:
    """Return the digest, or refuse it; `what` names it in the error.

    Raises:
        ContractError: `bad_digest`.
    """
    if not is_digest(text):
        raise ContractError("bad_digest", f"{what} {text!r} is not 64 lower-case hex digits")
    return text


def _require_name(text: object, what: str) -> None:
    if not isinstance(text, str) or not 0 < len(text) <= _MAX_NAME:
        raise ContractError("bad_name", f"{what} must be 1 to {_MAX_NAME} characters of text")


@dataclass(frozen=True, slots=True)
class Resource:
    """What an effect acts on, derived from the args by the reviewed manifest.

    Raises:
        ContractError: `bad_name` when the type or the id is empty or too long.
    """

    __pydantic_config__ = ConfigDict(strict=True, extra="forbid")  # as a field of wire models

    type: str
    id: str

    def __post_init__(self) -> None:
        _require_name(self.type, "resource type")
        _require_name(self.id, "resource id")

    def to_json(self) -> dict[str, str]:
        """The resource as digests and tokens carry it."""
        return {"type": self.type, "id": self.id}


@dataclass(frozen=True, slots=True)
class Compensation:
    """How an effect would be compensated: the tool, its digest, and the source of each argument.

    Raises:
        ContractError: `bad_digest`, `bad_name`; PointerError for a source of unknown form.
    """

    tool: str
    tool_digest: str
    map: Mapping[str, str]

    def __post_init__(self) -> None:
        _require_name(self.tool, "compensating tool")
        require_digest(self.tool_digest, "tool_digest of the compensation")
        object.__setattr__(self, "map", dict(self.map))  # our own copy: the caller keeps no reference to it
        for source in self.map.values():
            require_source(source)

    def to_json(self) -> dict[str, object]:
        """The compensation as the effect digest covers it."""
        return {"tool": self.tool, "tool_digest": self.tool_digest, "map": dict(self.map)}


@dataclass(frozen=True, slots=True)
class Effect:
    """One staged effect; `seq` counts the staged effects of its transaction from 1.

    Raises:
        ContractError: `bad_digest`, `bad_name`, `bad_seq`; `not_canonical` when `args_bytes` is not the RFC 8785 form
            of an admitted object; `effect_id_mismatch` when the id is not the digest of (txn, call_key).
        AdmissionError: the args are not admissible.
    """

    agent: str
    txn: str
    effect_id: str
    seq: int
    tool: str
    tool_digest: str
    resource: Resource
    args_bytes: bytes = field(repr=False)
    call_key: str
    compensation: Compensation | None = None
    digest: str = field(init=False, repr=False, compare=False)
    """`effect_digest`: the digest of everything above, computed once, because nothing of it can change."""
    args_digest: str = field(init=False, repr=False, compare=False)
    """Digest of the args, computed from the bytes themselves."""

    def __post_init__(self) -> None:
        _require_name(self.agent, "agent")
        _require_name(self.tool, "tool")
        for what in ("txn", "effect_id", "tool_digest", "call_key"):
            require_digest(getattr(self, what), what)
        if type(self.seq) is not int or self.seq < 1:
            raise ContractError("bad_seq", f"seq {self.seq!r} is not a whole number from 1 on")
        if not isinstance(load_canonical(self.args_bytes), dict):
            raise ContractError(
                "not_canonical", "args_bytes is not the RFC 8785 form of an object; canonicalize first"
            )
        if digests.effect_id(txn=self.txn, call_key=self.call_key) != self.effect_id:
            raise ContractError(
                "effect_id_mismatch", f"effect_id {self.effect_id} does not name this txn and call_key"
            )
        args_digest = digests.labelled_digest(digests.ARGS_LABEL, self.args_bytes)
        object.__setattr__(self, "args_digest", args_digest)
        object.__setattr__(self, "digest", digests.labelled_digest(digests.EFFECT_LABEL, self.canonical))

    @classmethod
    def stage(
        cls,
        *,
        agent: str,
        txn: str,
        call_key: str,
        seq: int,
        tool: str,
        tool_digest: str,
        resource: Resource,
        args: object,
        compensation: Compensation | None = None,
    ) -> "Effect":
        """Admit and freeze args into an effect and compute its id.

        Raises:
            AdmissionError, ContractError: as the class.
        """
        return cls(
            agent=agent,
            txn=txn,
            effect_id=digests.effect_id(txn=txn, call_key=call_key),
            seq=seq,
            tool=tool,
            tool_digest=tool_digest,
            resource=resource,
            args_bytes=admitted_bytes(args),
            call_key=call_key,
            compensation=compensation,
        )

    @property
    def args(self) -> dict[str, JSON]:
        """The args, decoded again from the canonical bytes: changing the result does not change the effect."""
        # __post_init__ has refused everything but an object
        return cast(dict[str, JSON], load(self.args_bytes))

    @property
    def canonical(self) -> bytes:
        """The canonical bytes the digest covers.

        The args' bytes are spliced in unchanged: "args" sorts after "agent" and before every other member.
        """
        agent = canonicalize({"agent": self.agent})
        return (
            agent[:-1] + b',"args":' + self.args_bytes + b"," + canonicalize(self._members_after_args())[1:]
        )

    def _members_after_args(self) -> dict[str, object]:
        members: dict[str, object] = {
            "call_key": self.call_key,
            "effect_id": self.effect_id,
            "resource": self.resource.to_json(),
            "seq": self.seq,
            "tool": self.tool,
            "tool_digest": self.tool_digest,
            "txn": self.txn,
            "v": VERSION,
        }
        if self.compensation is not None:
            members["compensation"] = self.compensation.to_json()
        return members
