"""The catalogue: each manifest states what it promises, and each act without compensation has a reason."""

import json
import re
from pathlib import Path
from typing import get_args
from urllib.parse import urlsplit

import pytest
from typer.testing import CliRunner, Result

from countersign import MisuseError, ToolRegistry, tool
from countersign.catalogue import Instead, catalogue, search_entries, uncompensated_acts, with_compensations
from countersign.cli.app import app
from countersign.contract import load_manifest, manifest_file
from countersign.contract.manifest import Lane
from countersign.manifests.drafts import manifest_json
from countersign.manifests.reviewed import require_fits
from countersign.tools.tool import tool_of

FOLDER = Path(__file__).resolve().parents[4] / "sdk/python/countersign/catalogue"
EVERY = catalogue()
ACTS = uncompensated_acts()


@pytest.fixture
def terminal(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def run(*words: str) -> Result:
        return CliRunner().invoke(app, ["tools", *words])

    return run


# --------------------------------------------------------------------------------------------------- the data


def test_every_file_is_an_entry_under_its_own_name_and_laid_out_as_an_export_is() -> None:
    files = {file.name: file.read_bytes() for file in (FOLDER / "manifests").iterdir()}
    assert files == {manifest_file(name): manifest_json(one.manifest) for name, one in EVERY.items()}
    assert [one["tool"] for one in json.loads((FOLDER / "entries.json").read_text())] == list(EVERY)
    assert len(EVERY) >= 35


@pytest.mark.parametrize("one", EVERY.values(), ids=EVERY)
def test_each_entry_is_whole(one) -> None:
    manifest, groups = one.manifest, one.manifest.groups
    compensated = manifest.compensation is not None
    assert [compensated, manifest.lane is Lane.LIVE, one.uncompensated is not None].count(True) == 1
    assert (one.compensated_by in EVERY, bool(one.compensation_leaves)) == (compensated, compensated)
    assert manifest.idempotent is (one.idempotent_because is not None)
    assert one.like and manifest.description and groups
    for parts in map(urlsplit, one.sources):
        assert (parts.scheme, bool(parts.netloc), parts.query) == ("https", True, "")
    assert ("money" in groups) is bool(manifest.money)
    without_recipients = {"chat.delete_message", "social.post", "calendar.cancel_event"}
    assert "message" not in groups or one.tool in without_recipients or manifest.recipients
    assert "destroy" not in groups or (manifest.risk.value == "high" and one.uncompensated is not None)
    assert all("password" not in name or f"/{name}" in manifest.secret for name in manifest.properties)


def test_what_destroys_or_publishes_has_no_compensation() -> None:
    for group in ("destroy", "public"):
        found = [one for one in EVERY.values() if group in one.manifest.groups]
        assert found and all(one.manifest.compensation is None for one in found)


def test_every_act_without_compensation_has_a_reason_and_advice() -> None:
    assert len({one.act for one in ACTS}) == len(ACTS)
    for act in ACTS:
        assert act.why.endswith(".") and act.do.endswith(".") and act.act
        assert act.instead and set(act.instead) <= set(get_args(Instead))
        assert act.tool is None or act.tool in EVERY
    assert len([one for one in ACTS if one.tool is None]) >= 5


# ------------------------------------------------------------------------------------------------ taking them


def test_taking_a_manifest_includes_its_compensation() -> None:
    for given, taken in (
        (["code.merge_pull_request"], ["code.merge_pull_request", "code.revert_commit"]),
        (["dns.change_record"], ["dns.change_record"]),
        (["identity.grant_role", "identity.revoke_role"], ["identity.grant_role", "identity.revoke_role"]),
    ):
        assert [one.tool for one in with_compensations(given)] == taken


def test_an_unknown_name_lists_similar_ones() -> None:
    similar = {"stripe.refund": r"has no 'stripe\.refund'; it has payments\.refund"}
    for name, says in (similar | {"frobnicate": r"it has accounting\.post_invoice, "}).items():
        with pytest.raises(MisuseError, match=says):
            with_compensations([name])


def test_a_word_finds_by_name_title_group_and_example() -> None:
    found = {word: {one.tool for one in search_entries(word)} for word in ("REFUND", "shopify", "frobnicate")}
    orders = {"orders.place", "orders.cancel"}
    assert found == {"REFUND": {"payments.refund"}, "shopify": orders, "frobnicate": set()}
    assert "payments.payout" in {one.tool for one in search_entries("money")}


def test_the_list_has_every_name_whole_when_narrow(terminal, monkeypatch) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    output = terminal("catalogue")
    lines = output.stdout.splitlines()
    assert [line.split()[0] for line in lines[: len(EVERY)]] == list(EVERY)
    assert (output.exit_code, len(lines)) == (0, len(EVERY) + len(ACTS))
    assert "no compensation: to send a mail. What was delivered stays" in output.stdout
    lines = terminal("catalogue", "refund").stdout.splitlines()
    assert [line.split()[0] for line in lines] == ["payments.refund", "no"]
    assert "none of them has the word 'zzz'" in terminal("catalogue", "zzz").output


def test_the_whole_of_it_is_one_document(terminal) -> None:
    output = json.loads(terminal("catalogue", "--json").stdout)
    assert output["format"] == "countersign/catalogue/v1"
    assert [one["tool"] for one in output["manifests"]] == list(EVERY)
    assert [one["act"] for one in output["no_compensation"]] == [one.act for one in ACTS]
    (refund,) = (one for one in output["manifests"] if one["tool"] == "payments.refund")
    assert load_manifest(json.dumps(refund["manifest"]).encode()) == EVERY["payments.refund"].manifest


def test_what_is_printed_can_be_redirected_to_a_file(terminal) -> None:
    output = terminal("take", "payments.charge")
    assert output.exit_code == 0
    assert load_manifest(output.stdout.encode()) == EVERY["payments.charge"].manifest
    for says in (
        "take payments.refund as well, or the bundle does not load", "count for nothing yet",
        "it says `idempotent`: the tool sends the call key",
        "after compensation, this remains: a line on the customer's statement",
    ):  # fmt: skip
        assert says in output.stderr


def test_a_repeated_name_is_reported_once(terminal) -> None:
    output = terminal("take", "mail.send", "mail.send", "payments.charge", "--out", "drafts")
    assert output.exit_code == 0, output.output
    mail, charge = output.stderr.split("the function to write: ")[1:]
    assert '@tool("mail.send")' in mail and "no compensation. What was delivered stays in" in mail
    assert "Instead: Show" in mail and "as well" not in mail
    assert '@tool("payments.charge")' in charge and "after compensation, this remains: " in charge
    assert "no compensation" not in charge


def test_a_folder_gets_it_with_its_compensation_as_drafts(terminal, tmp_path) -> None:
    output = terminal("take", "payments.charge", "mail.send", "--out", "drafts")
    mail = tmp_path / "drafts/mail.send.json"
    assert (output.exit_code, output.stdout) == (0, "")
    names = {file.name for file in mail.parent.iterdir()}
    assert names == {"payments.charge.json", "payments.refund.json", "mail.send.json"}
    mail.write_text("mine")
    place = terminal("take", "mail.send", "--out", "policies/tools")
    assert (place.exit_code, place.stderr[:8]) == (1, "misuse: ")
    assert "reserved for a reviewed manifest" in place.stderr and not (tmp_path / "policies").exists()
    again = terminal("take", "mail.send", "--out", "drafts")
    assert "kept as it was, --force replaces it" in again.stderr and mail.read_text() == "mine"
    terminal("take", "mail.send", "--out", "drafts", "--force")
    assert load_manifest(mail.read_bytes()) == EVERY["mail.send"].manifest


def test_it_may_have_a_name_of_your_own(terminal, tmp_path) -> None:
    twice = terminal("take", "mail.send", "mail.send", "--as", "post.send")
    assert load_manifest(twice.stdout.encode()).tool == "post.send"
    output = terminal("take", "payments.refund", "--as", "refund")
    renamed = EVERY["payments.refund"].manifest.model_copy(update={"tool": "refund"})
    assert load_manifest(output.stdout.encode()) == renamed
    assert '@tool("refund") def refund(payment_id: str, customer: str, amount_cents: int' in output.stderr
    for name, new, file in (
        ("dns.change_record", "point", "point"),
        ("tickets.close", "solve", "tickets.reopen"),
    ):
        terminal("take", name, "--as", new, "--out", "drafts")
        compensation = load_manifest((tmp_path / f"drafts/{file}.json").read_bytes()).compensation
        assert compensation is not None and compensation.tool == new


REFUSED = [
    ("frobnicate", "the catalogue has no 'frobnicate'"),
    ("mail.send sms.send", "name a folder with --out"),
    ("mail.send sms.send --out drafts --as send", "--as 'send' names one manifest, and 2 are taken"),
]


@pytest.mark.parametrize(("words", "said"), REFUSED)
def test_what_cannot_be_is_refused(terminal, tmp_path, words: str, said: str) -> None:
    output = terminal("take", *words.split())
    assert (output.exit_code, output.stdout, said in output.stderr) == (1, "", True)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("one", EVERY.values(), ids=EVERY)
def test_the_function_it_names_fits_the_manifest(terminal, one) -> None:
    (line,) = re.findall(r"the function to write: (.*)", terminal("take", one.tool).stderr)
    head, _, definition = line.partition(" def ")
    if one.manifest.lane is Lane.LIVE:
        assert head == f'@tool("{one.tool}", lane="live", adapter=...)'
        return
    place = {}
    exec(f"def {definition}: ...", place)
    function = place[definition.partition("(")[0]]
    require_fits(tool_of(tool(one.tool, registry=ToolRegistry())(function)), one.manifest)
