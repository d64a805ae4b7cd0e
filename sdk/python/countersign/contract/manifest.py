"""The tool manifest: the reviewed description of a tool, one JSON file in the bundle (`tools/*.json`).

What policy and people see of a call derives from the manifest and the canonical args, never from what the agent says.
Unknown members are refused. The args are one closed object; an object with free keys must declare it by giving
`additionalProperties` a schema. Pointers must be well formed, and the sentence may name only declared args.
"""

import json
import re
from difflib import get_close_matches
from enum import StrEnum
from functools import cached_property
from typing import Annotated, Final, Literal, Self, TypeVar
from urllib.parse import quote

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    JsonValue,
    Strict,
    StringConstraints,
    ValidationError,
    field_validator,
    model_validator,
)

from . import digests
from .admission import JSON, Limits, admit, load
from .compensation_sources import require_source
from .effect import Resource
from .errors import ManifestError, PointerError
from .pointers import SentencePart, pointer_tokens, require_pointer, resolve_pointer, split_sentence
from .schema_rules import require_closed_schema

MAX_TIMEOUT_SECONDS: Final = 3600  # an hour: a longer job is started by one tool and checked by a probe
_MANIFEST_LIMITS: Final = Limits(max_depth=48)
_CONST: Final = "const:"

T = TypeVar("T")
Many = Annotated[tuple[T, ...], Strict(False)]
"""A tuple that may be given as a list, as in JSON."""

GroupName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z][A-Za-z0-9_.\-]{0,127}$")]
"""Name of an action group."""

READ_GROUP: Final = "read"
"""The action group of tools that change nothing. A tool that is in no such group is a write."""

PEOPLE_ACTIONS: Final = frozenset(
    {"approve", "settle", "stop", "start_again", "break_glass", "break_glass_alone"}
)
"""The actions of people in policies. No tool and no group of tools may have one of these names."""


def require_unreserved_action(name: str) -> str:
    """Refuse a tool or group name that is an action of people: tools and groups are Cedar actions too.

    Raises:
        ManifestError: `invalid_manifest`, for an action of people.
    """
    if name not in PEOPLE_ACTIONS:
        return name
    raise ManifestError(
        "invalid_manifest",
        f"the action {name!r} is what people do here; call the tool or group something else",
    )


def require_unreserved_tool(name: str) -> str:
    """The same for a tool. Cedar's `in` also matches the action itself, so each rule about reads would match a tool
    called `read`.

    Raises:
        ManifestError: `invalid_manifest`, for an action of people and for the group of reads.
    """
    if name != READ_GROUP:
        return require_unreserved_action(name)
    raise ManifestError(
        "invalid_manifest",
        f"{name!r} is the action group of tools that change nothing; call the tool something else",
    )


_NO_SEGMENTS: Final = frozenset({"", ".", ".."})


def require_tool_name(name: str) -> str:
    """Return a valid tool name: 1 to 128 ASCII letters, digits and `_-./:`.

    MCP allows these, plus `/` and `:`, which its servers use. The path segments `.`, `..` and empty are refused,
    because URL libraries and proxies resolve them and such a tool could not be requested. Non-ASCII letters are
    refused, because people would approve a name that only looks like the one they know.

    Raises:
        ManifestError: `invalid_manifest`, for any other name.
    """
    if _TOOL_NAME.match(name) and _NO_SEGMENTS.isdisjoint(name.split("/")):
        return name
    raise ManifestError(
        "invalid_manifest",
        f"{name!r} is no tool name: write 1 to 128 of the letters A-Z and a-z, digits and _ - . / :, "
        "without '.', '..' or nothing between slashes",
    )


def manifest_file(tool: str) -> str:
    """The file name of a tool's reviewed manifest.

    Characters that are not safe in a file name are percent-encoded (`a/b` is `a%2Fb.json`), and so is a leading dot,
    which would hide the file.
    """
    stem = quote(tool, safe="")
    return ("%2E" + stem[1:] if stem.startswith(".") else stem) + ".json"


_TOOL_NAME: Final = re.compile(r"[A-Za-z0-9_.\-/:]{1,128}\Z")
Name = Annotated[str, StringConstraints(min_length=1, max_length=128), AfterValidator(require_tool_name)]
"""Name of a tool: a Cedar action id and part of a URL."""

BUILT_IN_TYPES: Final = frozenset({"Agent", "User", "Role", "Group", "Review", "Action"})
"""Entity types that the service fills itself; no resource may use one of these names."""

RESERVED_IDENTIFIERS: Final = frozenset(
    {"true", "false", "if", "then", "else", "in", "is", "like", "has", "__cedar"}
)
"""Reserved words of Cedar, which no part of an entity type's name may be."""

_TYPE_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(::[A-Za-z_][A-Za-z0-9_]*)*\Z")
_MAX_TYPE_NAME: Final = 128


def require_resource_type(name: str) -> str:
    """Return a valid Cedar entity type for a resource: `Order`, or `Shop::Order`.

    Raises:
        ManifestError: `invalid_manifest`: it is no such name, a reserved word of Cedar, or a type that the service
            fills itself (Cedar lets no namespace repeat it).
    """
    parts = name.split("::")
    if len(name) > _MAX_TYPE_NAME or not _TYPE_NAME.match(name):
        why = f"is no type name: write up to {_MAX_TYPE_NAME} letters A-Z and a-z, digits and _, like Order"
    elif words := [part for part in parts if part in RESERVED_IDENTIFIERS]:
        why = f"holds {words[0]!r}, which Cedar reserves; call it something else"
    elif name in BUILT_IN_TYPES or parts[-1] in BUILT_IN_TYPES - {"Review"}:
        why = "belongs to the service; call it something else"
    else:
        return name
    raise ManifestError("invalid_manifest", f"resource type {name!r} {why}")


TypeName = Annotated[str, AfterValidator(require_resource_type)]
"""Name of a resource's Cedar entity type."""


def _pointer_or_const(text: str) -> str:
    return text if text.startswith(_CONST) else require_pointer(text)


Pointer = Annotated[str, AfterValidator(require_pointer)]
PointerOrConst = Annotated[str, AfterValidator(_pointer_or_const)]
Source = Annotated[str, AfterValidator(require_source)]


class Lane(StrEnum):
    """`live` runs at once and can be undone by its adapter; `staged` waits for commit."""

    LIVE = "live"
    STAGED = "staged"


class Risk(StrEnum):
    """How much harm a wrong call can do; shown to people."""

    LOW = "low"
    MEDIUM = "medium"
    HIGH = "high"


class _ManifestModel(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)


class ResourceRule(_ManifestModel):
    """How to derive the resource from the args."""

    type: TypeName = Field(description="Cedar entity type of the resource.")
    id: PointerOrConst = Field(description="Pointer to a text or whole number in the args, or `const:TEXT`.")


class CompensationRule(_ManifestModel):
    """How a fired call is compensated."""

    tool: Name = Field(description="The compensating tool; its own manifest is in the same bundle.")
    map: dict[str, Source] = Field(
        description="Compensating tool's argument to `args:/pointer`, `result:/pointer` or `const:<json>`."
    )


class MoneyField(_ManifestModel):
    """A field that is money, in minor units."""

    amount: Pointer = Field(description="Pointer to a whole number of minor units.")
    currency: PointerOrConst = Field(description="Pointer to an ISO 4217 code, or `const:USD`.")


class ToolManifest(_ManifestModel):
    """One tool as people reviewed it (design section 3).

    Build it from a file with `load_manifest`; the constructor takes the same members.
    """

    tool: Name
    title: str = Field(min_length=1, max_length=200, description="A few words for lists.")
    description: str = Field(default="", max_length=4000)
    args: dict[str, JsonValue] = Field(
        description="JSON Schema of the args: one object without unknown properties."
    )
    resource: ResourceRule
    lane: Annotated[Lane, Strict(False)] = Lane.STAGED
    ask: Literal["live"] | None = Field(
        default=None, description="`live`: the policy is asked about a live effect before it runs."
    )
    idempotent: bool = Field(
        default=False, description="A second call with the same call key does nothing more."
    )
    on_exhausted: Literal["transaction", "tool"] = Field(
        default="transaction",
        description="What ends where it is known not to have acted: the transaction, or this call alone.",
    )
    compensation: CompensationRule | None = None
    groups: Many[GroupName] = Field(default=(), description="Cedar action groups the tool is in.")
    secret: Many[Pointer] = Field(default=(), description="Args whose values are never shown.")
    risk: Annotated[Risk, Strict(False)] = Risk.MEDIUM
    money: Many[MoneyField] = ()
    recipients: Many[Pointer] = Field(default=(), description="Args that say who receives something.")
    aud: str | None = Field(
        default=None,
        min_length=1,
        max_length=200,
        description="Enforcement point; the agent itself when absent.",
    )
    timeout_seconds: int = Field(default=60, ge=1, le=MAX_TIMEOUT_SECONDS)
    sentence: str = Field(
        min_length=1,
        max_length=500,
        description="What will happen, for people: `Refund {amount_cents} to {customer}`, or `{/pointer}`.",
    )
    recheck: bool = Field(default=False, description="The SDK renews before every fire of this tool.")
    probe: Name | None = Field(
        default=None, description="Function (`@probe`) that finds out whether a call has happened."
    )

    @field_validator("args")
    @classmethod
    def _closed(cls, schema: dict[str, JsonValue]) -> dict[str, JsonValue]:
        require_closed_schema(schema)
        return schema

    @model_validator(mode="after")
    def _pointers_are_declared(self) -> Self:
        declared = self.properties
        for pointer in self._pointers_into_args():
            tokens = pointer_tokens(pointer)
            if not tokens or tokens[0] not in declared:
                raise ManifestError(
                    "bad_pointer", f"{pointer!r} names no declared arg; args are {sorted(declared)}"
                )
        return self

    @model_validator(mode="after")
    def _names_are_free(self) -> Self:
        require_unreserved_tool(self.tool)
        for group in self.groups:
            require_unreserved_action(group)
        return self

    @model_validator(mode="after")
    def _live_runs_at_once(self) -> Self:
        if self.may_fail and self.lane is Lane.LIVE:
            raise ManifestError(
                "invalid_manifest",
                f"{self.tool!r} is a live tool, which raises in the agent's own code: catch it there, and leave out "
                "on_exhausted",
            )
        if self.evaluates_live and self.lane is not Lane.LIVE:
            raise ManifestError(
                "invalid_manifest",
                f"{self.tool!r} is a staged tool, about which the policy is asked at the commit: leave out ask, or "
                "make it `lane: live`",
            )
        return self

    def _pointers_into_args(self) -> list[str]:
        money = [pointer for field in self.money for pointer in (field.amount, field.currency)]
        sentence = [part.pointer for part in self.sentence_parts if part.pointer is not None]
        pointers = [self.resource.id, *self.secret, *self.recipients, *money, *sentence]
        if self.compensation is not None:
            pointers += [
                s.removeprefix("args:") for s in self.compensation.map.values() if s.startswith("args:")
            ]
        return [pointer for pointer in pointers if not pointer.startswith(_CONST)]

    @property
    def properties(self) -> frozenset[str]:
        """Names of the declared top-level args."""
        properties = self.args.get("properties")
        return frozenset(properties) if isinstance(properties, dict) else frozenset()

    @property
    def may_fail(self) -> bool:
        """Whether the transaction may proceed without a call of this tool that is known not to have acted."""
        return self.on_exhausted == "tool"

    @property
    def reads(self) -> bool:
        """Whether reviewers declared that it changes nothing, so that there is nothing to compensate."""
        return READ_GROUP in self.groups

    @property
    def evaluates_live(self) -> bool:
        """Whether the policy is evaluated for each live effect before it runs."""
        return self.ask == "live"

    @cached_property
    def sentence_parts(self) -> tuple[SentencePart, ...]:
        """The sentence cut into literal text and pointers into the args."""
        return split_sentence(self.sentence)

    def to_json(self) -> dict[str, JSON]:
        """The manifest as JSON, without members that equal their default: the value the digest covers.

        A member that is added to this model later with a default therefore changes no existing digest.
        """
        value: dict[str, JSON] = self.model_dump(mode="json", exclude_defaults=True)
        return value

    @cached_property
    def digest(self) -> str:
        """`tool_digest`: the digest of exactly this manifest."""
        return digests.tool_digest(admit(self.to_json(), _MANIFEST_LIMITS))

    def resource_of(self, args: JSON) -> Resource:
        """Derive the resource from canonical args.

        Raises:
            ManifestError: `invalid_args` when the pointer matches nothing, or a value that is not a name.
        """
        rule = self.resource
        if rule.id.startswith(_CONST):
            return Resource(rule.type, rule.id.removeprefix(_CONST))
        try:
            value = resolve_pointer(args, rule.id)
        except PointerError as error:
            raise ManifestError(
                "invalid_args", f"tool {self.tool!r} finds its resource at {error}"
            ) from error
        if isinstance(value, bool) or not isinstance(value, str | int) or value == "":
            raise ManifestError(
                "invalid_args", f"{rule.id!r} must be a text or a whole number to name a {rule.type}"
            )
        return Resource(rule.type, str(value))


def _validation_message(kind: str, place: tuple[int | str, ...], words: str) -> str:
    """A pydantic message, reworded for manifest authors where it is about models."""
    if kind == "missing":
        return "is required"
    if kind != "extra_forbidden":
        return words
    close = get_close_matches(str(place[-1]), ToolManifest.model_fields, n=1) if len(place) == 1 else []
    return f"is no member of a manifest{f'; did you mean {close[0]!r}?' if close else ''}"


def load_manifest(raw: bytes) -> ToolManifest:
    """Read one manifest file.

    Raises:
        AdmissionError: the bytes are not strict I-JSON.
        ManifestError: `invalid_manifest`, with the location of every problem.
    """
    # Serialise what was admitted, in the author's order: people see the args in that order.
    admitted = json.dumps(load(raw, _MANIFEST_LIMITS))
    try:
        return ToolManifest.model_validate_json(admitted)
    except ValidationError as error:
        problems = [
            (item["loc"], _validation_message(item["type"], item["loc"], item["msg"]))
            for item in error.errors()
        ]
        listed = "; ".join(f"{'/'.join(map(str, place)) or 'manifest'}: {words}" for place, words in problems)
        raise ManifestError("invalid_manifest", f"not a tool manifest: {listed}") from error
