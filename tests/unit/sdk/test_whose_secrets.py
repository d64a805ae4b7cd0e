"""A secret may be declared by the code, the local manifest or the service, for live and staged calls."""

import asyncio
import traceback
from contextlib import nullcontext
from typing import Any

import pytest

from countersign import MemoryAdapter, NotRecorded, errors, replay, tool, transaction
from countersign.contract import Verdict
from countersign.journal.export import describe_transaction
from countersign.journal.sealing import Seals
from countersign.journal.shown import HIDDEN
from countersign.manifests.drafts import manifest_json
from countersign.tools.tool import tool_of
from tests.fakes.desk import Desk, changed, charge_tools, charge_undone_by_void, record_of
from tests.fakes.running import fails, order_tool, refusing_tool, run_async
from tests.unit.sdk.hunting import SECRET, everything_of, found_in
from tests.unit.sdk.journals import document


def remember_tool(desk: Desk, **options: Any) -> Any:
    """A live tool. Its code calls nothing secret, unless a test does."""
    kept = MemoryAdapter(name="notes")
    live: Any = {"lane": "live", "adapter": kept, **options}

    @tool("remember", resource=("Note", "where"), registry=desk.registry, **live)
    def remember(where: str, text: str) -> None:
        """Remember something."""
        kept[where] = text

    return remember


def pay_tool(desk: Desk, **options: Any) -> Any:
    """A staged tool that says its secret aloud. The code alone calls it one."""

    @tool("pay", resource=("Order", "order_id"), secret=["pin"], registry=desk.registry, **options)
    def pay(order_id: str, pin: str) -> str:
        """Pay."""
        if order_id == "refused":
            raise errors.NotDone(f"bad {pin}")
        return f"paid with {pin}"

    return pay


def shown(desk: Desk, key: str, lane: str) -> Any:
    return desk.runtime.journal.transactions.shown(record_of(desk, key), lane)


def not_shown(*reported: object) -> bool:
    return found_in({"text": "".join(map(str, reported)).encode()}) == []


def described(desk: Desk, key: str) -> dict[str, Any]:
    return describe_transaction(desk.runtime.journal, record_of(desk, key))


def in_journal(desk: Desk) -> list[str]:
    return found_in(everything_of(desk.runtime.settings.journal_path))


# ------------------------------------------------------------------------------------------------ live calls


@pytest.mark.parametrize(("ask", "secret"), [(None, True), ("live", True), (None, False)])
def test_what_the_service_calls_secret_of_a_live_call_is_hidden(desk: Desk, ask: Any, secret: bool) -> None:
    """Without a declaration the search finds it."""
    remember = remember_tool(desk)
    desk.publish(remember, ask=ask, secret=("/text",) * secret)
    desk.run((remember, "here", SECRET))
    (row,) = shown(desk, "t-1", "live")
    assert (row.has_secrets, row.args) == (secret, {"where": "here", "text": HIDDEN if secret else SECRET})
    assert not_shown(described(desk, "t-1")) is secret
    assert (in_journal(desk) == []) is secret


def test_what_code_file_and_service_call_secret_is_taken_together(desk: Desk, tmp_path: Any) -> None:
    neighbor = tmp_path / "remember.json"

    live: Any = {"lane": "live", "adapter": MemoryAdapter(), "secret": ["a"], "manifest": neighbor}

    @tool("remember", resource=("Note", "const:n"), registry=desk.registry, **live)
    def remember(a: str, b: str, c: str, d: str) -> None:
        """Remember something."""

    draft = tool_of(remember).draft_manifest()
    neighbor.write_bytes(manifest_json(changed(draft, secret=("/b",))))
    desk.service.review([changed(draft, secret=("/c",))])
    desk.run((remember, "1", "2", "3", "4"))
    assert shown(desk, "t-1", "live")[0].args == {"a": HIDDEN, "b": HIDDEN, "c": HIDDEN, "d": "4"}


def test_an_async_live_call_is_sealed_as_well(desk: Desk) -> None:
    @tool("jot", lane="live", adapter=MemoryAdapter(), resource=("Note", "const:n"), registry=desk.registry)
    async def jot(text: str) -> None: ...

    desk.publish(jot, secret=("/text",))
    asyncio.run(run_async(desk, (jot, SECRET)))
    assert shown(desk, "t-1", "live")[0].args == {"text": HIDDEN}


def test_a_denial_in_another_thread_does_not_make_a_released_call_s_secret_unknown(desk: Desk) -> None:
    """A denial forgets the manifest, for it may have changed, while a call of another thread is about to run."""
    remember = remember_tool(desk)
    desk.publish(remember, ask="live", secret=("/text",))

    def policy(*_: Any) -> Verdict:
        desk.runtime.manifests.forget("remember")
        return Verdict.RELEASE

    desk.service.policy = policy
    desk.run((remember, "here", SECRET))
    assert shown(desk, "t-1", "live")[0].args == {"where": "here", "text": HIDDEN}


def test_what_is_secret_is_what_the_last_look_said(desk: Desk) -> None:
    remember, secret = remember_tool(desk), [(), ("/text",), ()]
    for number, pointers in enumerate(secret):
        desk.service.manifests.pop("remember", None)
        desk.publish(remember, secret=pointers)
        desk.run((remember, "here", "a"), key=f"t-{number}")
        desk.clock.advance(60)
    assert [shown(desk, f"t-{n}", "live")[0].has_secrets for n in range(3)] == [*map(bool, secret)]


def test_a_dry_run_hides_what_the_service_calls_secret_of_a_live_call(desk: Desk) -> None:
    remember = remember_tool(desk)
    desk.publish(remember, secret=("/text",))
    trial = desk.run((remember, "here", SECRET), dry_run=True)
    assert not_shown(trial.result, repr(trial.result), trial.result.to_json())
    assert [one.args for one in trial.result.live] == [{"where": "here", "text": HIDDEN}]
    assert [one.after for changes in trial.result.changes for one in changes.changes or ()] == [HIDDEN]


def secrets_of(now: list[str], desk: Desk, secret: list[str]) -> Any:
    """A live tool that is given something, and answers."""

    @tool("find", lane="live", adapter=MemoryAdapter(), secret=secret, registry=desk.registry)
    def find(who: str) -> str:
        """Find what is known of somebody."""
        return now[0]

    return find


def test_the_result_of_a_live_tool_with_secrets_is_hidden_and_replayed(desk: Desk) -> None:
    now = [f"passport {SECRET}"]
    find = secrets_of(now, desk, ["who"])
    desk.run((find, "ada"))
    assert not_shown(described(desk, "t-1"))
    assert in_journal(desk) == []
    rebuilt = replay("t-1", lambda _: find("ada"), mode="reconstruct", runtime=desk.runtime)
    assert (rebuilt.status, rebuilt.value) == ("same", now[0])
    assert replay("t-1", lambda _: find("ada"), runtime=desk.runtime).status == "same"
    now[0] = f"another {SECRET}"
    other = replay("t-1", lambda _: find("ada"), runtime=desk.runtime)
    (reported,) = other.divergences
    assert str(reported) == "live call 1 of find: its result is another, and is hidden"
    written = document(desk.runtime.journal, "t-1")
    from_export = replay("t-1", lambda _: find("ada"), export=written, runtime=desk.runtime)
    (reported,) = from_export.unchecked
    assert reported == "live call 1 of find: its result is hidden in the export, so it is not compared"
    with pytest.raises(NotRecorded, match="is hidden in an export"):
        replay("t-1", lambda _: find("ada"), mode="reconstruct", export=written, runtime=desk.runtime)
    assert all(not_shown(one, one.to_json(), [*one.divergences]) for one in (rebuilt, other, from_export))


def test_a_live_result_that_becomes_a_secret_argument_is_hidden(desk: Desk) -> None:
    """It was given no secret itself, and answers with the one that the next call is given."""
    find, pay = secrets_of([SECRET], desk, []), pay_tool(desk)
    desk.publish(pay)
    desk.run((lambda: pay("o-1", find("ada")),))
    assert in_journal(desk) == []
    assert [one["result"] for one in described(desk, "t-1")["effects"]] == [HIDDEN, HIDDEN]
    again = replay("t-1", lambda _: pay("o-1", find("ada")), mode="reconstruct", runtime=desk.runtime)
    assert (again.status, again.value.result) == ("same", f"paid with {SECRET}")


def test_what_was_taken_back_before_still_hides_what_was_found_for_it(desk: Desk) -> None:
    find, remember = secrets_of([SECRET], desk, []), remember_tool(desk, secret=["text"])
    with transaction("t-1", runtime=desk.runtime):
        found = find("ada")
        with pytest.raises(ValueError, match="taken back"), transaction():
            remember("here", found)
            raise ValueError("taken back")
    assert in_journal(desk) == []


def test_a_live_result_that_cannot_be_sealed_is_dropped(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    find = secrets_of([SECRET], desk, ["who"])

    def away(*_: Any) -> Any:
        raise errors.JournalSealed("the key is not here", "k")

    txn = desk.run((find, "ada"), (monkeypatch.setattr, Seals, "_sealing_key", away))
    assert txn.state == "settled"
    (row,) = shown(desk, "t-1", "live")
    assert (row.state.value, row.result, row.result_sealed, in_journal(desk)) == ("kept", None, False, [])


def hidden_in_replay(desk: Desk, call: Any, mode: Any = "verify") -> bool:
    """A replay makes another call with a secret, which its record does not have."""
    pay = pay_tool(desk)
    desk.publish(pay)
    desk.run((pay, "o-1", SECRET))
    again = replay(
        "t-1", lambda _: (pay("o-1", SECRET), call("there", SECRET)), mode=mode, runtime=desk.runtime
    )
    assert len(again.divergences) == 1 and "there" in str(again)
    return not_shown(again, again.to_json(), [*again.divergences])


@pytest.mark.parametrize("mode", ["verify", "reconstruct"])
def test_a_replay_hides_what_this_process_has_looked_up_of_a_live_call(desk: Desk, mode: Any) -> None:
    remember = remember_tool(desk)
    desk.publish(remember, secret=("/text",))
    desk.run((remember, "here", SECRET), key="seen")
    assert hidden_in_replay(desk, remember, mode)


@pytest.mark.parametrize("lane", ["live", "staged"])
def test_a_replay_hides_what_the_file_calls_secret(desk: Desk, tmp_path: Any, lane: Any) -> None:
    file, where = (
        tmp_path / "mail.json",
        {"lane": "live", "adapter": MemoryAdapter()} if lane == "live" else {},
    )

    @tool("mail", resource=("Note", "who"), registry=desk.registry, manifest=file, **where)
    def mail(who: str, text: str) -> None: ...

    file.write_bytes(manifest_json(changed(tool_of(mail).draft_manifest(), secret=("/text",))))
    assert hidden_in_replay(desk, mail)


# ---------------------------------------------------------------------------------------------- staged calls


def reviewed_without_secrets(desk: Desk, file: Any) -> Any:
    """The staged tool, of which reviewers and its file say that nothing is secret."""
    pay = pay_tool(desk, **({"manifest": file} if file else {}))
    reviewed = changed(tool_of(pay).draft_manifest(), secret=())
    if file:
        file.write_bytes(manifest_json(reviewed))
    desk.service.review([reviewed])
    return pay


@pytest.mark.parametrize("reviewed_by", ["the service", "a local file"])
def test_what_the_code_alone_calls_secret_is_hidden(desk: Desk, tmp_path: Any, reviewed_by: str) -> None:
    pay = reviewed_without_secrets(desk, tmp_path / "pay.json" if reviewed_by == "a local file" else None)
    desk.run((pay, "o-1", SECRET))
    failed = fails(desk, errors.EffectFailed, (pay, "refused", SECRET), key="t-2").error
    rows: list[Any] = [shown(desk, key, "staged")[0] for key in ("t-1", "t-2")]
    assert ([row.args["pin"] for row in rows], rows[1].error) == ([HIDDEN] * 2, "NotDone")
    assert not_shown(*traceback.format_exception(failed)) and in_journal(desk) == []


EXITS: Any = {
    "with a text": (lambda pin: SystemExit(f"bad {pin}"), 1),
    "with something else": (lambda pin: SystemExit((2, pin)), 1),
    "with a code": (lambda pin: SystemExit(3), 3),
    "with none": (lambda pin: SystemExit(), None),
}


@pytest.mark.parametrize("at_once", [False, True], ids=["alone", "with another"])
@pytest.mark.parametrize(("ending", "code"), EXITS.values(), ids=EXITS.keys())
def test_a_tool_with_secrets_exits_without_its_text(desk: Desk, ending: Any, code: Any, at_once: Any) -> None:
    @order_tool(desk, secret=["pin"])
    def leave(order_id: str, pin: str) -> None:
        """Pay, or leave."""
        try:
            raise KeyError(pin)
        except KeyError as error:
            raise ending(pin) from error

    charge = charge_tools(desk)
    with pytest.raises(SystemExit) as left, desk.step() as txn, txn.parallel() if at_once else nullcontext():
        leave("o-1", SECRET)
        if at_once:
            charge("o-1", 5)
    assert left.value.code == code
    held = [left.value, left.value.__cause__, left.value.__context__]
    assert not_shown(held, *traceback.format_exception(left.value))
    assert (shown(desk, "t-1", "staged")[0].state.value, in_journal(desk)) == ("unknown", [])


def test_a_compensation_s_own_code_may_call_something_secret(desk: Desk) -> None:
    @order_tool(desk, resource=("Charge", "const:c"), secret=["charge_id"], changes={"secret": ()})
    def void(charge_id: str) -> None:
        raise errors.NotDone(f"{charge_id} cannot be given back")

    calls = (charge_undone_by_void(desk), "o-1"), (refusing_tool(desk), "o-1")
    desk.run(*calls, raises=errors.EffectFailed)
    (row,) = shown(desk, "t-1", "compensate")
    assert (row.args, row.error) == ({"charge_id": HIDDEN}, "NotDone")


def test_a_dry_run_hides_what_the_code_calls_secret(desk: Desk, tmp_path: Any) -> None:
    """Also where the service is away."""
    pay = reviewed_without_secrets(desk, tmp_path / "pay.json")
    for lost in (0, 99):
        desk.face.faults["/v1/"] = ["lost_request"] * lost
        trial = desk.run((pay, "o-1", SECRET), dry_run=True)
        (foreseen,) = trial.result.effects
        assert foreseen.args == {"order_id": "o-1", "pin": HIDDEN}
        assert not_shown(trial.result.to_json())
