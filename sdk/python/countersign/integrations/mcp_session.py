"""`gate_mcp`: makes the tools of an MCP server gated tools, without changes on either side.

Each listed tool becomes a staged tool with the same name. A call is validated by the schema of its draft (`countersign
tools export --mcp`) and decided by the reviewed manifest. Only a commit calls the server, with the call key in `_meta`.
The server's own claims do not count: a tool that claims to read is a read only if its reviewed manifest has a group
that the policy permits.

A tool without a valid draft is refused by name, and the others are gated. A result with `isError` means that the tool
may have acted, like an exception of any tool, unless `failure_means="not_done"`. Tools with the same name from two
servers are refused.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Annotated, Any, Final

from pydantic import AfterValidator, JsonValue

from countersign.contract.json_schema import validator_of
from countersign.errors import CountersignError, MisuseError, RegistrationError
from countersign.integrations.errors import require_package
from countersign.manifests.mcp_drafts import McpDraft, mcp_drafts
from countersign.texts import storable
from countersign.tools.context import current_effect, open_transaction
from countersign.tools.declaration import FailureMeans
from countersign.tools.definition import GIVEN_MANIFEST
from countersign.tools.registry import ToolRegistry, default_registry
from countersign.tools.results import pointer_step
from countersign.tools.tool import tool
from countersign.transactions.opening import transaction

if TYPE_CHECKING:
    from mcp import Client, ClientSession

    from countersign.runtime import Runtime

CALL_KEY_IN_META: Final = "countersign/call-key"
"""The key in `_meta` with the idempotency key of a call."""

_MAX_PAGES: Final = 100  # of a listing: protects against a server that never ends one
_SERVER: Final = "__countersign_mcp_server__"


class McpToolError(CountersignError):
    """The server answered a call with `isError`. It is not known whether it had acted before."""

    code = "mcp_tool_error"

    def __init__(self, name: str, said: str) -> None:
        self.name, self.said = name, storable(said)
        super().__init__(f"the MCP server answered {name!r} with an error: {self.said}")


class GatedSession:
    """A client session whose calls are decided first. `tools` are for `run_openai` and `run_anthropic`, or to call
    directly.

    `refused`: the server's other tools by name, each with the reason why it cannot be reviewed and is not gated.
    """

    def __init__(
        self,
        tools: Mapping[str, Callable[..., Any]],
        runtime: Runtime | None,
        refused: Mapping[str, tuple[str, ...]],
    ) -> None:
        self._tools = dict(tools)
        self._runtime = runtime
        self.refused = dict(refused)

    @property
    def tools(self) -> tuple[Callable[..., Any], ...]:
        """The gated tools, in the server's order."""
        return tuple(self._tools.values())

    async def call_tool(
        self, name: str, arguments: Mapping[str, Any] | None = None, *, key: str | None = None
    ) -> Any:
        """Call a tool. Inside a transaction it stages the call and returns its placeholder. Outside, it commits a
        transaction of its own at once and returns the real result, for example to read. `name` is the server's,
        without a prefix; `key` is the key of that transaction.

        Raises:
            MisuseError: the tool is unknown or refused, or a key was given inside a transaction.
            CountersignError: as leaving a transaction does.
        """
        if name in self.refused:
            raise MisuseError(_why_refused(name, self.refused[name]))
        if name not in self._tools:
            raise MisuseError(f"there is no tool {name!r}; there are {', '.join(self._tools) or 'none'}")
        if open_transaction() is not None:
            if key is not None:
                raise MisuseError("inside a transaction a call has that one's key; leave key= out")
            return await self._tools[name](**(arguments or {}))
        async with transaction(key, runtime=self._runtime):
            placeholder = await self._tools[name](**(arguments or {}))
        return placeholder.result


async def gate_mcp(
    session: ClientSession | Client,
    *,
    server: str | None = None,
    prefix: str = "",
    only: Sequence[str] | None = None,
    failure_means: FailureMeans = "unknown",
    registry: ToolRegistry | None = None,
    runtime: Runtime | None = None,
) -> GatedSession:
    """Gate the tools of an initialized `mcp.ClientSession`, or of an entered `mcp.Client`; `only` those with these
    names.

    `server` is your name for the server: a later connection with the same name reuses the same tools. The name the
    server reports is ignored. `prefix` is prepended to each name here and in the manifests, as in `countersign tools
    export --mcp --prefix`, for servers with equal tool names and for reserved names.

    Raises:
        PackageMissing: `mcp` is not installed.
        RegistrationError: another server's tool has the name; `only` lists a tool that is missing or cannot be
            reviewed.
        MisuseError: it is not such a session, or the listing has no end.
    """
    mcp = require_package("mcp")
    if not isinstance(session, mcp.ClientSession | mcp.Client):
        raise MisuseError(
            f"gate_mcp takes an initialized mcp.ClientSession or an entered mcp.Client, not {type(session).__name__}; "
            "gate each session of an mcp.ClientSessionGroup with a prefix of its own"
        )
    drafts = {one.tool: one for one in mcp_drafts(await _listing(session), prefix)[0]}
    wanted = [name for name in drafts if drafts[name].manifest] if only is None else list(only)
    if missing := [name for name in wanted if name not in drafts]:
        raise RegistrationError(f"the MCP server has no tool {missing[0]!r}; it has {', '.join(drafts)}")
    into = registry or (default_registry if runtime is None else runtime.registry)
    return GatedSession(
        {name: _gated(session, drafts[name], server, failure_means, into) for name in wanted},
        runtime,
        {name: draft.problems for name, draft in drafts.items() if draft.manifest is None},
    )


async def _listing(session: ClientSession | Client) -> bytes:
    """All pages of `tools/list`, as one response."""
    mcp = import_module("mcp")
    listing: Any = session
    tools: list[Any] = []
    cursor: str | None = None
    for _ in range(_MAX_PAGES):
        if isinstance(session, mcp.Client):
            page = await listing.list_tools(cursor=cursor, cache_mode="refresh")
        else:
            params = None if cursor is None else mcp.types.PaginatedRequestParams(cursor=cursor)
            page = await listing.list_tools(params=params)
        tools += [one.model_dump(mode="json", by_alias=True, exclude_none=True) for one in page.tools]
        cursor = page.next_cursor
        if cursor is None:
            return json.dumps({"tools": tools}).encode()
    raise MisuseError(f"the MCP server's list of tools does not end after {_MAX_PAGES} pages")


def _gated(
    session: ClientSession | Client,
    draft: McpDraft,
    server: str | None,
    failure_means: FailureMeans,
    registry: ToolRegistry,
) -> Callable[..., Any]:
    if draft.manifest is None:
        raise RegistrationError(_why_refused(draft.tool, draft.problems))
    name, manifest = draft.manifest.tool, draft.manifest
    known = registry.get(name)
    if known is not None and (server is None or getattr(known.fn, _SERVER, None) != server):
        raise RegistrationError(
            f"a tool {name!r} is registered already, and nothing says that it is of the same MCP server: name the "
            "server each time you connect to it, gate_mcp(session, server=...), or set another server's names apart, "
            "gate_mcp(session, prefix=...)"
        )

    async def call(**args: Any) -> Any:
        meta: Any = {CALL_KEY_IN_META: current_effect().call_key}
        return _result(name, await session.call_tool(draft.tool, args, meta=meta))

    call.__doc__ = manifest.description or manifest.title
    call.__name__ = name
    call.__annotations__ = {**_annotations(manifest.args), "return": Any}
    call.__signature__ = _signature(manifest.args)  # type: ignore[attr-defined]
    setattr(call, _SERVER, server)
    setattr(call, GIVEN_MANIFEST, manifest)
    decorate: Callable[..., Any] = tool(
        name,
        failure_means=failure_means,
        registry=registry,
        resource=(manifest.resource.type, manifest.resource.id),
        title=manifest.title,
        risk=manifest.risk.value,
        secret=manifest.secret,
    )
    gated: Callable[..., Any] = decorate(call)
    return gated


def _why_refused(name: str, problems: Sequence[str]) -> str:
    return f"the MCP tool {name!r} cannot be reviewed, so it is not gated: {'; '.join(problems)}"


class _Argument(inspect.Parameter):
    """A keyword argument with any name: a server may have one called `from`."""

    __slots__ = ("_called",)

    def __init__(self, called: str, default: Any) -> None:
        super().__init__("argument", inspect.Parameter.KEYWORD_ONLY, default=default)
        self._called = called

    @property
    def name(self) -> str:
        return self._called


def _signature(schema: Mapping[str, Any]) -> inspect.Signature:
    required = schema.get("required", ())
    return inspect.Signature(
        [_Argument(one, inspect.Parameter.empty if one in required else None) for one in schema["properties"]]
    )


def _annotations(schema: Mapping[str, Any]) -> dict[str, Any]:
    """A JSON type for each argument, with its part of the schema."""
    definitions = schema.get("$defs", {})
    return {
        one: Annotated[JsonValue, AfterValidator(_schema_check({"$defs": definitions, "allOf": [part]}))]
        for one, part in schema["properties"].items()
    }


def _schema_check(schema: Mapping[str, Any]) -> Callable[[Any], Any]:
    """A validator for the schema. Its errors omit the value, which may be a secret. The server's patterns run in
    bounded time, because a hostile one would block the agent.
    """
    validator = validator_of(schema)

    def check(value: Any) -> Any:
        for error in validator.iter_errors(value):
            where = "/".join(map(pointer_step, error.absolute_path))
            raise ValueError(
                f"{where or 'it'} does not fit {error.validator} {json.dumps(error.validator_value)}"
            )
        return value

    return check


def _result(name: str, answer: Any) -> Any:
    texts = [one.text for one in answer.content if one.type == "text"]
    if answer.is_error:
        raise McpToolError(name, "\n".join(texts) or "it said nothing")
    if answer.structured_content is not None:
        return answer.structured_content
    if len(texts) == len(answer.content):
        return "\n".join(texts)
    return [one.model_dump(mode="json", by_alias=True, exclude_none=True) for one in answer.content]
