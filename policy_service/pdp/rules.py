"""The policies a bundle decides with: for each tool its codec, its schema and its two sets of policies.

Rules kept here: guards are the permits and plain forbids, gates the forbids that ask people, and the two are
never mixed; a tool's sets hold exactly the policies whose action can match it, so leaving the others out
changes no answer. That is exact: Cedar evaluates the scope before the conditions. The action hierarchy must be the
schema's own, so such a set belongs to one bundle.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal, Protocol

from cedarpy import PolicySet, Schema, pst

from countersign.contract import JSON, ToolManifest
from policy_service.domain.gates import Gate
from policy_service.domain.policy_request import EncodedArgs

UNSEEN: Final = "unseen"
"""Policy id and group of the built-in gate for what Cedar cannot weigh; no author's policy may take the id.
"""

UNSEEN_GATE: Final = Gate(
    UNSEEN, frozenset({UNSEEN}), shared=True, title="Carries fields the policy cannot weigh"
)

UNKNOWN_TOOL: Final = "unknown-tool"
"""Policy id of the built-in gate that stands, in dev alone, where everywhere else an unknown tool is denied."""

UNKNOWN_TOOL_GATE: Final = Gate(
    UNKNOWN_TOOL, frozenset({UNSEEN}), title="UNKNOWN TOOL: nobody has reviewed a manifest of it"
)

DEV: Final = "dev"
"""The one environment in which an unknown tool asks people; settings keep it on loopback."""


class Codec(Protocol):
    """Args of one tool to `context.input`."""

    def encode(self, args: JSON) -> EncodedArgs:
        """The args as policy sees them; raises ArgsRefusedError."""

    @property
    def possible_unseen(self) -> frozenset[str]:
        """The fields that policy cannot weigh where they are present."""


@dataclass(frozen=True, slots=True)
class PolicySource:
    """One policy as its author wrote it, and where. `gate` is set on a forbid that asks people."""

    id: str
    effect: Literal["permit", "forbid"]
    file: str
    line: int
    text: str
    annotations: Mapping[str, str] = field(default_factory=dict)
    gate: Gate | None = None
    unseen: frozenset[str] = frozenset()
    people_action: str | None = None  # what people do that it is about, not tools: approve, settle, stop, ...

    @property
    def title(self) -> str:
        """A few words for lists, or the id."""
        return self.annotations.get("title") or self.id

    @property
    def doc(self) -> str:
        """What the author says about it."""
        return self.annotations.get("doc", "")

    @property
    def place(self) -> str:
        """Where to find it: `file:line`."""
        return f"{self.file}:{self.line}"


@dataclass(frozen=True, slots=True)
class ToolRules:
    """Everything needed to decide a call of one version of a tool. `everything` is guards and gates together."""

    manifest: ToolManifest
    codec: Codec
    schema: Schema
    guards: PolicySet
    gates: frozenset[str]
    everything: PolicySet
    permits: tuple[str, ...] = ()
    resource_attributes: frozenset[str] = frozenset()
    agent_attributes: frozenset[str] = frozenset()
    meters: tuple[str, ...] = ()  # those that count this tool


@dataclass(frozen=True, slots=True)
class PeopleRules:
    """The policies about one thing people do: `Action::"approve"`, `Action::"stop"`."""

    schema: Schema
    policies: PolicySet


@dataclass(frozen=True, slots=True)
class Rules:
    """One bundle, as decisions see it. `tools` are the current versions by name, `versions` all by name and digest."""

    digest: str
    commit: str
    tools: Mapping[str, ToolRules]
    versions: Mapping[tuple[str, str], ToolRules]
    policies: Mapping[str, PolicySource]
    groups_of: Callable[[str], frozenset[str]]
    # by what they do: approve, settle, stop, ...
    people: Mapping[str, PeopleRules] = field(default_factory=dict)
    asked: frozenset[str] = frozenset()  # the groups some gate names
    places: Mapping[str, int] = field(init=False, repr=False)  # of each policy, by file and line

    def __post_init__(self) -> None:
        # Counted once: a decision must not walk through the policies of other tools.
        places = {policy_id: place for place, policy_id in enumerate(self.policies)}
        object.__setattr__(self, "places", places)

    def in_order(self, policy_ids: Any) -> tuple[str, ...]:
        """These ids in the order of the files, so that equal questions give equal answers."""
        known = {policy_id for policy_id in policy_ids if policy_id in self.places}
        return tuple(sorted(known, key=self.places.__getitem__))


def scope_actions(policy: pst.Template) -> frozenset[str] | None:
    """Ids of the actions and groups in a policy's scope; None when it is open to every action."""
    match policy.action:
        case pst.ActionEq(entity=entity):
            return frozenset({entity.id})
        case pst.ActionIn(entities=entities):
            return frozenset(entity.id for entity in entities)
    return None


def scope_may_match(policy: pst.Template, action: str, groups: Iterable[str]) -> bool:
    """Whether this policy's action scope can match that action, itself or through one of its groups."""
    match policy.action:
        case pst.ActionEq(entity=entity):
            return bool(entity.id == action)
        case pst.ActionIn(entities=entities):
            reachable = {action, *groups}
            return any(entity.id in reachable for entity in entities)
    return True


def policy_set(policies: Mapping[str, pst.Template]) -> PolicySet:
    """A handle over these policies, whose reasons and errors then carry our ids."""
    return PolicySet.from_pst(pst.PolicySet(templates={}, static_policies=dict(policies), template_links=()))
