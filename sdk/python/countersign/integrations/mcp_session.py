"""`gate_mcp`: the tools of an MCP server as tools of ours, without rewriting them on either side.

Each tool the server lists becomes a staged one of its name: a call is described by the schema that its draft has
(`countersign tools export --mcp`), decided by the manifest that people reviewed, and only a commit calls the server,
with the call key in `_meta`. Nothing the server says of its tools counts: one that claims to read is a read when its
reviewed manifest puts it into a group that the policy lets go.

Rules: a tool that makes no draft is refused by name; a result with `isError` means that it may have acted, as an
exception of any tool does, unless `failure_means="not_done"`; tools of one name from two servers are refused.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Annotated, Any, Final

from pydantic import AfterValidator, JsonValue, WithJsonSchema

from countersign.contract.patterns import pattern_keywords
from countersign.errors import CountersignError, MisuseError, RegistrationError
from countersign.integrations.packages import require_package
from countersign.manifests.drafting import written_out
from countersign.manifests.mcp_drafts import McpDraft, mcp_drafts
from countersign.texts import storable
from countersign.tools.current import current_effect, open_transaction
from countersign.tools.declaring import FailureMeans
from countersign.tools.nested import pointer_step
from countersign.tools.registry import ToolRegistry, default_registry
from countersign.tools.tool import tool
from countersign.transactions.opening import transaction

if TYPE_CHECKING:
    from mcp import ClientSession

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
    """A client session whose calls are decided first. `tools` are for `run_openai` and `run_anthropic`, or to call."""

    def __init__(self, tools: Mapping[str, Callable[..., Any]], runtime: Runtime | None) -> None:
        self._tools = dict(tools)
        self._runtime = runtime

    @property
    def tools(self) -> tuple[Callable[..., Any], ...]:
        """The gated tools, in the server's order."""
        return tuple(self._tools.values())

    async def call_tool(
        self, name: str, arguments: Mapping[str, Any] | None = None, *, key: str | None = None
    ) -> Any:
        """Inside a transaction: stage the call, and answer its placeholder. Outside: a transaction of its own that
        commits at once, and its real result; that is how an agent reads. `key` is that one's key.

        Raises:
            MisuseError: there is no such tool, or a key inside a transaction.
            CountersignError: as leaving a transaction does.
        """
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
    session: ClientSession,
    *,
    server: str | None = None,
    only: Sequence[str] | None = None,
    failure_means: FailureMeans = "unknown",
    registry: ToolRegistry | None = None,
    runtime: Runtime | None = None,
) -> GatedSession:
    """Gate the tools of an initialized client session; `only` those of these names. `server` is your name for the
    server: whoever connects to it again under it goes on with the same tools. What it calls itself does not count.

    Raises:
        PackageMissing: `mcp` is not installed.
        RegistrationError: a tool makes no draft, or another server's has its name; `only` names one that is not there.
        MisuseError: the listing is ambiguous or has no end.
    """
    require_package("mcp")
    drafts = {one.tool: one for one in mcp_drafts(await _listing(session))[0]}
    wanted = list(drafts) if only is None else list(only)
    if missing := [name for name in wanted if name not in drafts]:
        raise RegistrationError(f"the MCP server has no tool {missing[0]!r}; it has {', '.join(drafts)}")
    into = registry or (default_registry if runtime is None else runtime.registry)
    return GatedSession(
        {name: _gated(session, drafts[name], server, failure_means, into) for name in wanted}, runtime
    )


async def _listing(session: ClientSession) -> bytes:
    """Every page of `tools/list`, as one answer."""
    types = import_module("mcp.types")
    tools: list[Any] = []
    cursor: str | None = None
    for _ in range(_MAX_PAGES):
        params = None if cursor is None else types.PaginatedRequestParams(cursor=cursor)
        page = await session.list_tools(params=params)
        tools += [one.model_dump(mode="json", by_alias=True, exclude_none=True) for one in page.tools]
        cursor = page.next_cursor
        if cursor is None:
            return json.dumps({"tools": tools}).encode()
    raise MisuseError(f"the MCP server's list of tools does not end after {_MAX_PAGES} pages")


def _gated(
    session: ClientSession,
    draft: McpDraft,
    server: str | None,
    failure_means: FailureMeans,
    registry: ToolRegistry,
) -> Callable[..., Any]:
    name = draft.tool
    if draft.manifest is None:
        raise RegistrationError(
            f"the MCP tool {name!r} cannot be reviewed, so it is not gated: {'; '.join(draft.problems)}. Name the "
            "others with only=[...]"
        )
    known = registry.get(name)
    if known is not None and (server is None or getattr(known.fn, _SERVER, None) != server):
        raise RegistrationError(
            f"a tool {name!r} is registered already, and nothing says that it is of the same MCP server: name the "
            "server each time you connect to it, gate_mcp(session, server=...), or give each a registry and a runtime "
            "of its own"
        )

    async def call(**args: Any) -> Any:
        meta: Any = {CALL_KEY_IN_META: current_effect().call_key}
        return _result(name, await session.call_tool(name, args, meta=meta))

    call.__doc__ = draft.manifest.description or draft.manifest.title
    call.__name__ = name
    call.__annotations__ = {**_annotations(name, draft.manifest.args), "return": Any}
    call.__signature__ = _signature(name, draft.manifest.args)  # type: ignore[attr-defined]
    setattr(call, _SERVER, server)
    resource = draft.manifest.resource
    decorate: Callable[..., Any] = tool(
        name,
        failure_means=failure_means,
        registry=registry,
        resource=(resource.type, resource.id),
        title=draft.manifest.title,
        risk="high",
        secret=draft.manifest.secret,
    )
    gated: Callable[..., Any] = decorate(call)
    return gated


def _signature(name: str, schema: Mapping[str, Any]) -> inspect.Signature:
    required = schema.get("required", ())
    try:
        parameters = [
            inspect.Parameter(
                one,
                inspect.Parameter.KEYWORD_ONLY,
                default=inspect.Parameter.empty if one in required else None,
            )
            for one in schema["properties"]
        ]
    except ValueError as error:
        raise RegistrationError(
            f"the MCP tool {name!r} has an argument that no function can have ({error}); the server must rename it"
        ) from error
    return inspect.Signature(parameters)


def _annotations(name: str, schema: Mapping[str, Any]) -> dict[str, Any]:
    """Each argument as JSON that its part of the schema describes."""
    definitions = schema.get("$defs", {})
    written = {one: written_out(part, definitions, name) for one, part in schema["properties"].items()}
    return {
        one: Annotated[JsonValue, AfterValidator(_fits(part)), WithJsonSchema(part)]
        for one, part in written.items()
    }


def _fits(schema: Mapping[str, Any]) -> Callable[[Any], Any]:
    """Holds a value against its schema. What is wrong is told without the value, which may be a secret; the server's
    patterns run in bounded time, for a hostile one would stop the agent.
    """
    jsonschema = import_module("jsonschema")  # comes with mcp
    keywords = pattern_keywords(jsonschema.ValidationError)
    validator = jsonschema.validators.extend(jsonschema.Draft202012Validator, keywords)(schema)

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
