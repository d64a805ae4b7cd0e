"""The whole catalogue as one bundle with the starter policies: it loads, decides, and compensates."""

import asyncio
import json
from datetime import UTC, datetime
from pathlib import Path

import pytest
from typer.testing import CliRunner

from countersign.catalogue import Entry, catalogue
from countersign.contract import JSON, Effect, Verdict, canonicalize, manifest_file, resolve_pointer
from countersign.manifests.drafts import manifest_json
from policy_service.channels.admin.dev.folder import STARTER as DEV_TEMPLATES
from policy_service.cli import app
from policy_service.domain.policy_request import AgentPrincipal, Decision, PolicyRequest
from policy_service.pap.bundle import Bundle, load_bundle
from policy_service.pdp.engine import decide
from policy_service.queries.effects import effect_sentence
from policy_service.workflow.effects.digests import new_effect_row
from tests.fakes.catalogue import sample, taken_back

NOW = datetime(2026, 11, 23, 9, 0, tzinfo=UTC)
EVERY = catalogue()
COMPENSATED = {name: one for name, one in EVERY.items() if one.manifest.compensation is not None}


def _with_the_catalogue(folder: Path) -> Path:
    (folder / "tools").mkdir(parents=True, exist_ok=True)
    for one in EVERY.values():
        (folder / "tools" / manifest_file(one.tool)).write_bytes(manifest_json(one.manifest))
    return folder


@pytest.fixture(scope="module")
def starter_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What `policy-service new` writes, with every manifest of the catalogue."""
    folder = tmp_path_factory.mktemp("starter") / "policies"
    made = CliRunner().invoke(app, ["new", str(folder)])
    assert made.exit_code == 0, made.output
    return _with_the_catalogue(folder)


@pytest.fixture(scope="module")
def starter(starter_folder: Path) -> Bundle:
    return load_bundle(starter_folder)


@pytest.fixture(scope="module")
def dev(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    """What `policy-service dev` writes next to a script, with the same manifests."""
    folder = _with_the_catalogue(tmp_path_factory.mktemp("dev"))
    (folder / "starter.cedar").write_bytes((DEV_TEMPLATES / "starter.cedar").read_bytes())
    groups = (DEV_TEMPLATES / "groups.template").read_text()
    (folder / "groups.toml").write_text(groups.format(person='"urn:test|me"', name='"Me"'))
    return load_bundle(folder)


def decided(bundle: Bundle, tool: str, args: dict[str, JSON], *roles: str) -> Decision:
    facts = asyncio.run(bundle.facts_for(tool, args, json.dumps(args).encode(), agent="robot", now=NOW))
    agent = AgentPrincipal("robot", roles=frozenset(roles))
    return decide(bundle.rules, PolicyRequest(agent, tool, bundle.manifests[tool].digest, args, facts, NOW))


@pytest.mark.parametrize("command", [["check", "--strict"], ["test"]], ids=" ".join)
def test_catalogue_has_no_findings(starter_folder: Path, command: list[str]) -> None:
    result = CliRunner().invoke(app, [*command, str(starter_folder)])
    assert result.exit_code == 0, result.output


@pytest.mark.parametrize("name", EVERY)
def test_starter_policies_ask_people_and_see_all_fields(starter: Bundle, dev: Bundle, name: str) -> None:
    args = sample(EVERY[name].manifest)
    ours, theirs = decided(starter, name, args, "agent"), decided(dev, name, args)
    assert [(one.outcome, [gate.policy_id for gate in one.gates], one.unseen) for one in (ours, theirs)] == [
        (Verdict.REVIEW, ["writes-need-a-person"], ())
    ] * 2
    assert decided(starter, name, args).outcome is Verdict.DENY, "an agent without the role"


@pytest.mark.parametrize("name", EVERY)
def test_invalid_arguments_are_denied(starter: Bundle, name: str) -> None:
    args = sample(EVERY[name].manifest)
    first = next(iter(args))
    for wrong in (args | {"more": 1}, {key: value for key, value in args.items() if key != first}):
        said = decided(starter, name, wrong, "agent")
        assert (said.outcome, [one.code for one in said.reasons]) == (Verdict.DENY, ["invalid_args"])


@pytest.mark.parametrize("name", COMPENSATED)
def test_compensation_arguments_are_valid(starter: Bundle, name: str) -> None:
    manifest = EVERY[name].manifest
    assert manifest.compensation is not None
    said = decided(starter, manifest.compensation.tool, taken_back(manifest, sample(manifest)), "agent")
    assert (said.outcome, said.reasons) == (Verdict.REVIEW, ())


INVERSE = sorted(name for name, one in COMPENSATED.items() if one.compensated_by == name)


@pytest.mark.parametrize("name", INVERSE)
def test_self_inverse_compensation_restores_the_start(name: str) -> None:
    manifest = EVERY[name].manifest
    args = sample(manifest)
    back = taken_back(manifest, args)
    assert back != args
    assert taken_back(manifest, back) == args


@pytest.mark.parametrize("one", EVERY.values(), ids=EVERY)
def test_sentence_is_complete_and_contains_no_secret(starter: Bundle, one: Entry) -> None:
    manifest, args = one.manifest, sample(one.manifest)
    effect = Effect.stage(
        agent="robot", txn="0" * 64, call_key="1" * 64, seq=1, tool=one.tool, tool_digest=manifest.digest,
        resource=manifest.resource_of(args), args=args,
    )  # fmt: skip
    text = "".join(piece.text for piece in effect_sentence(starter, new_effect_row(starter, effect, 1)))
    named = [part.pointer for part in manifest.sentence_parts if part.pointer is not None]
    for pointer in named:
        value = resolve_pointer(args, pointer)
        values = value if isinstance(value, list) else [value]
        amounts = {money.amount for money in manifest.money}
        assert all(str(each) in text for each in values) or pointer in amounts, text
    assert "{" not in text
    assert all(str(resolve_pointer(args, hidden)) not in text for hidden in manifest.secret)
    assert canonicalize(args) == new_effect_row(starter, effect, 1).args
