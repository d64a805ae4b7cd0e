"""A frozen list of effects: what is requested, and later fired, byte for byte.

Made once, after the body, from the staged bytes and the reviewed manifests (design section 7, step 1), or read back
from the journal. Refused: a tool with another enforcement point, a compensation whose tool is not registered or whose
mapping does not fit it, a probe that is not registered or does not fit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from countersign.contract import digests
from countersign.contract.admission import load
from countersign.contract.compensation_sources import reads_result
from countersign.contract.effect import Compensation, Effect
from countersign.contract.errors import ContractError
from countersign.contract.manifest import ToolManifest
from countersign.contract.wire import SubmittedEffect
from countersign.errors import AlreadyRedeemed, NotStageable, RegistrationError
from countersign.journal import Journal, LocalState, LocalTxn
from countersign.journal.chain import require_intact
from countersign.manifests.reviewed import Manifests, secret_pointers
from countersign.service.client import Service
from countersign.tools.definition import Tool
from countersign.tools.registry import ToolRegistry


@dataclass(frozen=True, slots=True)
class StagedCall:
    """One call as the body staged it."""

    tool: Tool
    args: bytes = field(repr=False)
    n: int
    call_key: str
    effect_id: str
    group: int = 0  # calls of one group, other than 0, may fire concurrently
    secret: tuple[str, ...] | None = None  # pointers known when it was staged; None: unknown
    tool_digest: str | None = None  # of the manifest that declares them

    def learned(self, manifest: ToolManifest) -> StagedCall:
        """The same call with the secret pointers of this manifest and of the code."""
        return replace(self, secret=secret_pointers(self.tool, manifest), tool_digest=manifest.digest)


@dataclass(frozen=True, slots=True)
class PlannedCall:
    """One effect with its tool and its reviewed manifest."""

    tool: Tool
    manifest: ToolManifest
    effect: Effect
    n: int = 0
    group: int = 0  # from staging; a list read from the journal fires sequentially
    inherits_secrets: bool = False  # a compensation of a call with secrets

    @property
    def label(self) -> str:
        """The name people see, as in the journal: `refund#2`."""
        return f"{self.tool.name}#{self.effect.seq}"

    @property
    def has_secrets(self) -> bool:
        """Whether the tool's texts must stay hidden because they may quote a secret."""
        return self.inherits_secrets or bool(self.secret)

    @property
    def secret(self) -> tuple[str, ...]:
        """Pointers to its secret arguments."""
        return secret_pointers(self.tool, self.manifest)

    @property
    def only_reads(self) -> bool:
        """Whether its reviewed manifest declares that it changes nothing, so nothing remains after it fired."""
        return self.manifest.reads and self.effect.compensation is None

    @property
    def reports_result(self) -> bool:
        """Whether the service needs the tool's result: only if a compensation takes an argument from it."""
        compensation = self.effect.compensation
        return compensation is not None and reads_result(compensation.map)

    def kwargs(self) -> dict[str, Any]:
        """The arguments, made anew from the approved bytes; never the caller's own objects (I-2)."""
        return self.tool.signature.retype(self.effect.args_bytes)

    def allows_success(self, state: LocalState) -> bool:
        """Whether the transaction may succeed with this effect in that state: fired, or failed if its manifest
        allows that.
        """
        return state is LocalState.FIRED or (state is LocalState.FAILED and self.manifest.may_fail)

    def submitted(self) -> SubmittedEffect:
        """The effect as it is submitted. The service computes every name itself and compares."""
        return SubmittedEffect(
            tool=self.effect.tool,
            tool_digest=self.effect.tool_digest,
            args=self.effect.args,
            n=self.n,
            call_key=self.effect.call_key,
            resource=self.effect.resource,
        )


@dataclass(frozen=True, slots=True)
class Plan:
    """The whole list, in order, under its run key."""

    agent: str
    run_key: str
    txn: str
    independent: bool
    calls: tuple[PlannedCall, ...]
    staging: int
    live: int
    attempt_id: str = ""
    returned: Mapping[str, bytes] = field(default_factory=dict, repr=False, compare=False)
    """The kept results of its live effects, by effect id."""

    @property
    def effects(self) -> tuple[Effect, ...]:
        """The effects, in order."""
        return tuple(call.effect for call in self.calls)

    @property
    def secret(self) -> dict[str, tuple[str, ...]]:
        """The secret pointers declared by manifests and code, by tool digest."""
        return {call.effect.tool_digest: call.secret for call in self.calls}

    @property
    def txn_digest(self) -> str:
        """The digest of exactly this list."""
        return digests.txn_digest(effect_digests=[effect.digest for effect in self.effects])

    @property
    def list_key(self) -> tuple[tuple[str, str], ...]:
        """What makes two lists the same list (design section 6): call keys and tool digests, in order."""
        return tuple((effect.call_key, effect.tool_digest) for effect in self.effects)

    @property
    def call_keys(self) -> tuple[str, ...]:
        """What makes two lists request the same calls, even with other manifests."""
        return tuple(effect.call_key for effect in self.effects)

    def tools_changed_in(self, later: Plan) -> tuple[str, ...]:
        """The tools whose manifests differ in a later plan of the same calls, by name."""
        now = {effect.call_key: effect.tool_digest for effect in later.effects}
        changed = (
            one.tool for one in self.effects if now.get(one.call_key, one.tool_digest) != one.tool_digest
        )
        return tuple(dict.fromkeys(changed))

    def require_callable(self) -> None:
        """Refuse bytes that do not fit the tools' signatures, before anything is redeemed.

        Raises:
            NotStageable: naming the tool and the argument.
        """
        for call in self.calls:
            call.kwargs()


async def plan_calls(
    staged: Sequence[StagedCall],
    *,
    agent: str,
    txn: str,
    manifests: Manifests,
    registry: ToolRegistry,
    service: Service,
) -> tuple[PlannedCall, ...]:
    """Complete staged calls into effects.

    Raises:
        RegistrationError: a manifest does not fit its tool, or a compensating tool is missing.
        NotStageable: a tool has another enforcement point, or its resource cannot be named.
    """
    planned = []
    for seq, call in enumerate(staged, start=1):
        manifest = await manifests.of(call.tool, service)
        require_own_enforcement_point(manifest, agent)
        _require_probe(manifest, call.tool, registry)
        effect = _effect(
            call, manifest, agent, txn, seq, await _compensation(manifest, manifests, registry, service)
        )
        planned.append(PlannedCall(call.tool, manifest, effect, call.n, call.group))
    return tuple(planned)


def require_resumable(journal: Journal, txn: str) -> None:
    """Refuse to continue a transaction that is damaged or closed.

    Raises:
        JournalError: the record is not as the SDK wrote it.
        AlreadyRedeemed: a person has closed it.
    """
    require_intact(journal.database, txn)
    record = journal.transactions.require(txn)
    if record.state is LocalTxn.CLOSED:
        raise AlreadyRedeemed(record.run_key, txn, record.state.value, record.note or "")


def require_own_enforcement_point(manifest: ToolManifest, agent: str) -> None:
    """Refuse a tool whose reviewed enforcement point is not this agent.

    Raises:
        NotStageable: naming the enforcement point.
    """
    if manifest.aud is not None and manifest.aud != agent:
        raise NotStageable(
            f"{manifest.tool} fires at {manifest.aud!r}, not in this process; call it through that enforcement point"
        )


async def _compensation(
    manifest: ToolManifest, manifests: Manifests, registry: ToolRegistry, service: Service
) -> Compensation | None:
    rule = manifest.compensation
    if rule is None:
        return None
    other = registry.require_staged(rule.tool, f"the manifest of {manifest.tool!r} compensates with it")
    theirs = await manifests.of(other, service)
    require_mapping_fits(manifest.tool, other, rule.map)
    _require_probe(theirs, other, registry)
    return Compensation(rule.tool, theirs.digest, rule.map)


def _require_probe(manifest: ToolManifest, tool: Tool, registry: ToolRegistry) -> None:
    """Refuse a tool whose reviewed probe could not be called. Checked now, not when it is needed.

    Raises:
        RegistrationError: no probe of that name is registered.
        NotStageable: the probe takes an argument that the tool does not have.
    """
    if manifest.probe is None:
        return
    found_probe = registry.probe(manifest.probe)
    if found_probe is None:
        raise RegistrationError(
            f"no probe {manifest.probe!r} is registered, but the manifest of {manifest.tool!r} names it; import the "
            f"module that defines it, with @probe({manifest.probe!r})"
        )
    if strange := found_probe.strange(tool.signature):
        raise NotStageable(
            f"the probe {found_probe.name!r} takes {strange[0]!r}, which is no argument of {tool.name!r} that is "
            "always present; use the name of one"
        )


def require_mapping_fits(tool: str, other: Tool, mapping: Any) -> None:
    """Refuse a compensation that could never be called. Checked now, not when it is needed.

    Raises:
        NotStageable: naming the arguments.
    """
    missing = other.signature.names - other.signature.optional - set(mapping)
    unknown = set(mapping) - other.signature.names
    if missing or unknown:
        named = ", ".join(sorted(missing | unknown))
        raise NotStageable(
            f"the compensation of {tool!r} does not fit {other.name!r}: {named} missing or unknown; change the "
            "map in "
            "the manifest"
        )


def _effect(
    call: StagedCall,
    manifest: ToolManifest,
    agent: str,
    txn: str,
    seq: int,
    compensation: Compensation | None,
) -> Effect:
    try:
        return Effect(
            agent=agent,
            txn=txn,
            effect_id=call.effect_id,
            seq=seq,
            tool=call.tool.name,
            tool_digest=manifest.digest,
            resource=manifest.resource_of(load(call.args)),
            args_bytes=call.args,
            call_key=call.call_key,
            compensation=compensation,
        )
    except ContractError as error:
        raise NotStageable(f"the call of {call.tool.name!r} is not a valid effect: {error}") from error
