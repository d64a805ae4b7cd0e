"""`gate_mcp`: the tools of an MCP server as tools of ours, without rewriting them on either side.

Each tool the server lists becomes a staged one of its name: a call is described by the schema that its draft has
(`countersign tools export --mcp`), decided by the manifest that people reviewed, and only a commit calls the server,
with the call key in `_meta`. Nothing the server says of its tools counts: one that claims to read is a read when its
reviewed manifest puts it into a group that the policy lets go.

Rules: a tool that makes no draft is refused by name, and the others are gated; a result with `isError` means that it
may have acted, as an exception of any tool does, unless `failure_means="not_done"`; tools of one name from two servers
are refused.
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
"""Where in `_meta` a server finds the idempotency key of a call."""

_MAX_PAGES: Final = 100  # of a listing; a server that never ends one is not believed
_SERVER: Final = "__countersign_mcp_server__"


class McpToolError(CountersignError):
    """The server answered a call with `isError`. Nobody can tell whether it had acted before."""

    code = "mcp_tool_error"

    def __init__(self, name: str, said: str) -> None:
        self.name, self.said = name, storable(said)
        super().__init__(f"the MCP server answered {name!r} with an error: {self.said}")


class GatedSession:
    """A client session whose calls are decided first. `tools` are for `run_openai` and `run_anthropic`, or to call.

    `refused`: the server's other tools by name, each with why it cannot be reviewed and so is not gated.
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
        """Inside a transaction: stage the call, and answer its placeholder. Outside: a transaction of its own that
        commits at once, and its real result; that is how an agent reads. `name` is the server's, without a prefix;
        `key` is that transaction's key.

        Raises:
            MisuseError: there is no such tool, it is refused, or a key inside a transaction.
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
    """Gate the tools of an initialized `mcp.ClientSession`, or of an entered `mcp.Client`; `only` those of these names.

    `server` is your name for the server: a later connection under the same name goes on with the same tools. What it
    calls itself does not count. `prefix` goes before each name here and in the manifests, as in `countersign tools
    export --mcp --prefix`: for servers with tools of one name, and for names that policies use.

    Raises:
        PackageMissing: `mcp` is not installed. RegistrationError: another server's tool has a name; `only` names a tool
        that is not there or cannot be reviewed. MisuseError: it is no such session, or the listing has no end.
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
    """Every page of `tools/list`, as one answer."""
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
    """An argument of any name: a server may well call one `from`, and it is only ever given by keyword."""

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
    """Each argument as JSON that its part of the schema describes."""
    definitions = schema.get("$defs", {})
    return {
        one: Annotated[JsonValue, AfterValidator(_schema_check({"$defs": definitions, "allOf": [part]}))]
        for one, part in schema["properties"].items()
    }


def _schema_check(schema: Mapping[str, Any]) -> Callable[[Any], Any]:
    """Holds a value against its schema. What is wrong is told without the value, which may be a secret; the server's
    patterns run in bounded time, for a hostile one would stop the agent.
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
