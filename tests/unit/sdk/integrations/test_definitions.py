"""Names and schemas as vendors take them, and what a call of a model sends, which is counted whole or asked for."""

import itertools
import subprocess
import sys
from datetime import UTC, datetime
from functools import partial

import openai
import pytest
from anthropic import NOT_GIVEN, omit
from anthropic.types import TextBlock
from pydantic import BaseModel

from countersign import MisuseError, RegistrationError, ToolRegistry, tool
from countersign.integrations import anthropic_tools, openai_tools
from countersign.integrations.model_loop import request_text
from countersign.integrations.tool_definitions import OfferedTools
from countersign.manifests.drafts import args_schema
from countersign.tools.tool import tool_of
from tests.conventions.repository import ROOT
from tests.fakes.model_vendors import NAME


def named(*names: str) -> list:
    registry = ToolRegistry()

    def make(name: str):
        def act(order_id: str, note: str | None = None) -> None:
            """Act."""

        return tool(name, resource=("Order", "order_id"), registry=registry)(act)

    # each is a function of its own to the registry, which takes equal code for the same tool
    return [make(name) for name in names]


NAMES: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "a plain name stays": (("refund", "send-mail_2"), ("refund", "send-mail_2")),
    "what vendors refuse becomes an underscore": (("mail.send", "fs/read:all"), ("mail_send", "fs_read_all")),
    "64 letters stay": (("a" * 64,), ("a" * 64,)),
    "65 are cut and made distinct": (("a" * 65,), ("a" * 55 + "_635361c4",)),
    "two that would be equal are made distinct": (("a.b", "a/b"), ("a_b_2e7336dc", "a_b_c14cddc0")),
    "the one whose name it is keeps it": (("a.b", "a_b"), ("a_b_2e7336dc", "a_b")),
}


@pytest.mark.parametrize(("names", "shown"), NAMES.values(), ids=NAMES.keys())
def test_names_are_mapped_and_mapped_back(names: tuple[str, ...], shown: tuple[str, ...]) -> None:
    offered = OfferedTools(named(*names))
    assert {one.name: name for name, one in offered} == dict(zip(names, shown, strict=True))
    for name, short in zip(names, shown, strict=True):
        found = offered.find(short)
        assert found is not None and found[0].name == name and NAME.match(short)
        assert short == name or offered.find(name) is None or name in shown


def test_the_order_of_the_tools_does_not_change_their_names() -> None:
    functions = named("a.b", "a/b", "a_b", "x" * 70)
    assert len({frozenset(OfferedTools(one).names) for one in itertools.permutations(functions)}) == 1


def test_a_tool_is_named_once() -> None:
    with pytest.raises(MisuseError, match="'refund' twice"):
        openai_tools(named("refund") * 2)


def test_definitions_are_the_schema_of_the_manifest_with_the_vendors_names() -> None:
    (one,) = named("mail.send")
    schema = args_schema(tool_of(one))
    assert schema == tool_of(one).draft_manifest().args
    function = {"name": "mail_send", "description": "Act.", "parameters": schema}
    assert openai_tools([one]) == [{"type": "function", "function": function}]
    assert anthropic_tools([one]) == [{"name": "mail_send", "description": "Act.", "input_schema": schema}]


def test_without_a_docstring_the_description_is_the_name() -> None:
    @tool("send_mail", registry=ToolRegistry())
    def send(to: str) -> None: ...

    assert anthropic_tools([send])[0]["description"] == "send mail"


def test_an_argument_that_may_hold_anything_is_refused() -> None:
    @tool("send_mail", registry=ToolRegistry())
    def send(to) -> None:  # type: ignore[no-untyped-def]
        """Send."""

    for definitions in (openai_tools, anthropic_tools):
        with pytest.raises(RegistrationError, match="does not declare what 'to' may hold"):
            definitions([send])


MISSING = """
import asyncio, sys
import countersign.integrations as ours
[getattr(ours, name) for name in ours.__all__]
print({"openai", "anthropic", "mcp", "pytest"} & set(sys.modules))
sys.modules |= dict.fromkeys(("openai", "anthropic", "mcp"))
from countersign.integrations import PackageMissing, gate_mcp, run_anthropic, run_openai
given = {"model": "m", "messages": [], "tools": [], "key": "k"}
for call in (
    lambda: run_openai(None, **given),
    lambda: run_anthropic(None, max_tokens=1, **given),
    lambda: asyncio.run(gate_mcp(None)),
):
    try:
        call()
    except PackageMissing as missing:
        print(missing)
"""


def test_a_missing_package_is_named_and_none_is_loaded_by_importing_ours() -> None:
    run = partial(subprocess.run, capture_output=True, text=True, timeout=60, check=True)
    done = run([sys.executable, "-c", MISSING], cwd=ROOT / "sdk/python")
    loaded, *shown = done.stdout.splitlines()
    extras = [f"countersign-sdk[{package}]" for package in ("openai", "anthropic", "mcp")]
    assert (loaded, [one.rpartition(": ")[2] for one in shown]) == ("set()", extras)
    assert shown[0].startswith("the package 'openai' is not installed here; install it")


# ------------------------------------------------------------------------------------------------------ what is sent


WORDS = "word " * 2_000
BLOCK = TextBlock(type="text", text=WORDS)
FILE = {"type": "document", "source": {"type": "url", "url": "https://cups.example/pages.pdf"}}


class Made(BaseModel, extra="allow"):
    """Any object of a client."""

    type: str


SAID = [{"role": "user", "content": "Hello."}]


DESCRIBED = {"schema": {"properties": {"type": {"type": "string", "description": WORDS}}}}


OPTIONS = {
    # what a call of a model sends, and whether it is counted as text
    "a text": ({"system": WORDS}, True),
    "blocks": ({"system": [{"type": "text", "text": WORDS}]}, True),
    "blocks of the client": ({"system": [BLOCK]}, True),
    "a tuple of them": ({"system": (BLOCK,)}, True),
    "an object of the client": ({"thinking": Made(type="enabled", why=WORDS)}, True),
    "a schema that has a property `type`": ({"response_format": DESCRIBED}, True),
    "extra_body": ({"extra_body": {"note": [WORDS]}}, True),
    "a file in the options": ({"system": [FILE]}, False),
    "a file of the client there": ({"system": [Made(**FILE)]}, False),
    "an unknown kind of block": ({"system": [{"type": "hologram", "id": "h-1"}]}, False),
    "a file deep in extra_body": ({"extra_body": {"messages": [{"content": [FILE]}]}}, False),
    "an iterator, which is empty when the client looks": ({"system": iter([BLOCK])}, False),
    "bytes": ({"system": b"word"}, False),
    "a time": ({"metadata": {"at": datetime(2026, 1, 1, tzinfo=UTC)}}, False),
    "a class": ({"response_format": BaseModel}, False),
}


@pytest.mark.parametrize(("options", "is_text"), OPTIONS.values(), ids=OPTIONS)
def test_options_are_counted_or_need_a_token_bound(options: dict, is_text: bool) -> None:
    sent = request_text(SAID, [], options)
    assert (WORDS in str(sent)) if is_text else sent is None


@pytest.mark.parametrize("not_sent", [NOT_GIVEN, omit, openai.NOT_GIVEN, openai.omit])
def test_what_a_client_does_not_send_is_not_counted(not_sent: object) -> None:
    options = {"system": not_sent, "timeout": openai.Timeout(5), "extra_headers": {"x": WORDS}}
    assert request_text(SAID, [], options) == [SAID, [], {}]


MESSAGES = {
    "a block of the client": ([BLOCK], True),
    "a file of the client": ([Made(**FILE)], False),
    "a file": ([FILE], False),
    "a file that a tool answered": ([{"type": "tool_result", "tool_use_id": "c", "content": [FILE]}], False),
    "an iterator": (iter([BLOCK]), False),
}


@pytest.mark.parametrize(("content", "is_text"), MESSAGES.values(), ids=MESSAGES.keys())
def test_what_a_message_holds_is_looked_at_as_the_client_writes_it(content, is_text: bool) -> None:
    sent = request_text([{"role": "user", "content": content}], [], {})
    assert (sent is not None) is is_text and (WORDS in str(sent)) is is_text
