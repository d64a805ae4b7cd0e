"""The programs of the folder's README run unchanged."""

import asyncio
import json
import textwrap
from pathlib import Path

from countersign import use_runtime
from countersign.integrations import run_openai
from tests.conventions.documents import all_blocks
from tests.fakes.desk import Desk, refund_tool
from tests.fakes.mcp_bank import bank, mcp_manifests
from tests.fakes.model_vendors import anthropic_calls, anthropic_says, openai_calls, openai_says, vendor
from tests.fakes.talking import ASK, Talk
from tests.unit.sdk.integrations.talks import LARGE, REFUND, asked

PAGE = "docs/how-to/model-loops.md"
OPENAI, ANTHROPIC, PARKED, KEPT, MCP = (one.text for one in all_blocks("text") if one.document == PAGE)


def run(program: str, desk: Desk, **names) -> dict:
    known = {"messages": ASK, **names}
    with use_runtime(desk.runtime):
        exec(program, known)
    return known


def test_the_programs_of_the_page_run(desk: Desk, refund, monkeypatch, capsys) -> None:
    call = ("refund", REFUND)
    script = [openai_calls(call), openai_says("Done."), anthropic_calls(call), anthropic_says("Done.")]
    with vendor(*script) as both:
        for name in ("OPENAI", "ANTHROPIC"):
            monkeypatch.setenv(f"{name}_API_KEY", "none")
            monkeypatch.setenv(f"{name}_BASE_URL", both.url + "/v1" * (name == "OPENAI"))
        run(OPENAI, desk, refund=refund)
        run(ANTHROPIC, desk, refund=refund)
    assert (capsys.readouterr().out, len(desk.done)) == ("Done.\nDone.\n", 2)


def test_what_the_page_keeps_goes_on(desk: Desk, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    talk, tools = Talk("openai", runtime=desk.runtime), [refund_tool(desk)]
    end = talk.run([talk.calls(("refund", LARGE))], tools)
    run(PARKED, desk, end=end)
    desk.service.approve(asked(end))
    kept = json.loads(Path("case-83.json").read_text())
    assert talk.run([talk.says("Done.")], tools, messages=kept).text == "Done." and len(desk.done) == 1


def test_the_file_goes_on_anywhere(desk: Desk, tmp_path, monkeypatch) -> None:
    import openai

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OPENAI_API_KEY", "none")
    names = {"refund": refund_tool(desk), "openai": openai, "json": json, "Path": Path}
    names["run_openai"] = run_openai
    calls = [("refund", {"order_id": order, "amount_cents": 1200}) for order in ("o-4", "o-5")]
    script, kept = [openai_calls(*calls), openai_says("Done.")], Path("case-85.jsonl")
    kept.write_text(json.dumps(ASK[0]) + "\n")
    with vendor(*script) as one:
        monkeypatch.setenv("OPENAI_BASE_URL", f"{one.url}/v1")
        run(KEPT, desk, **names)
        whole = kept.read_text().splitlines()
        roles = [json.loads(line)["role"] for line in whole]
        assert roles == ["user", "assistant", "tool", "tool", "assistant"]
        for end in range(1, len(whole)):
            kept.write_text("".join(f"{line}\n" for line in whole[:end]))
            one.script[:] = script if end == 1 else script[1:]
            run(KEPT, desk, **names)
            assert kept.read_text().splitlines() == whole
    assert len(desk.done) == 2


def test_the_program_uses_a_server(desk: Desk, tmp_path, capsys) -> None:
    import anthropic
    from mcp import ClientSession
    from mcp.client._memory import InMemoryTransport

    desk.service.review(mcp_manifests())

    async def talk() -> None:
        call = ("transfer", {"account_id": "a-1", "amount_cents": 5})
        with vendor(anthropic_calls(call), anthropic_says("Done.")) as one:
            async with (
                InMemoryTransport(bank(tmp_path / "written")) as (read, write),
                anthropic.AsyncAnthropic(api_key="none", base_url=one.url) as client,
            ):
                names = {"ClientSession": ClientSession, "read": read, "write": write}
                names |= {"client": client, "messages": ASK}
                body = textwrap.indent(MCP, "    ")
                exec(f"async def program():\n{body}", names)
                await names["program"]()

    with use_runtime(desk.runtime):
        asyncio.run(talk())
    assert capsys.readouterr().out == "{'cents': 700}\n"
    written = (tmp_path / "written").read_text().splitlines()
    assert [json.loads(line)[0] for line in written] == ["balance", "transfer"]
