"""No secret is heard where none may be: in no log at any level, no page, refusal, span, metric, and on no terminal.

A canary is planted in every place that holds a secret; then the whole thread is driven, every refusal provoked, and
every layer broken with an exception that quotes all of them. What is allowed is a list (`tests/fakes/canaries.py`).
"""

from __future__ import annotations

import base64
import contextlib
import json
from collections.abc import AsyncIterator
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any
from unittest.mock import Mock
from urllib.parse import parse_qs, urlsplit

import httpx2
import pytest
import structlog

from countersign.contract import PrivateKey, make_proof
from policy_service.channels.http.api import TransactionPresenter
from policy_service.channels.web.pages import Pages
from policy_service.identity.sessions import Sessions
from policy_service.pap.bundle import Bundle
from policy_service.tokens.keys import CURRENT, NEXT, NONCE_SECRET
from policy_service.tokens.signer import Signer
from tests.fakes.canaries import Ears
from tests.fakes.identity_provider import ISSUER, SECRET, Provider
from tests.fakes.patience import until
from tests.fakes.payments import Payments, gate
from tests.fakes.world import Agent, Visitor, World, running
from tests.integration.service.test_recorded_calls import TRANSFER

PIN, CARD = "canary-pin-5d1c9a", "canary-card-77e0b2"
CORP = {
    "name": "corp", "title": "Corp", "issuer": ISSUER, "client_id": "countersign", "client_secret": SECRET,
    "groups_claim": "groups",
}  # fmt: skip
DIGEST = "0" * 64


class Scene:
    """A service with ears, an agent and a person, and secrets everywhere."""

    def __init__(self, world: World, ears: Ears, provider: Provider, robot: Agent, maya: Visitor) -> None:
        self.world, self.ears, self.provider = world, ears, provider
        self.robot, self.maya = robot, maya

    async def transfer(self, account: str = "acct-1", **more: Any) -> dict[str, Any]:
        args = {"account": account, "pin": PIN, "card": {"number": CARD}} | more
        return {"tool": "transfer", "tool_digest": await self.world.manifest_digest("transfer"), "args": args}

    async def submit(self, *effects: dict[str, Any], **members: Any) -> Any:
        return (await self.robot.submit(*effects, idempotency_key=KEY, **members)).json()

    async def released(self, view: dict[str, Any]) -> list[str]:
        """The tokens of a transaction, whose worth is a canary."""
        tokens: list[str] = (await self.robot.release(view)).json()["releases"]
        self.ears.plant(f"release token of {view['txn'][:9]}", signature(tokens[0]))
        return tokens


KEY = "canary-idempotency-41aa"
WEBHOOK_SECRET = f"whsec_{base64.b64encode(b'canary-of-a-webhook-secret').decode()}"


async def _public(*_: object) -> str:
    return "93.184.215.14"


@pytest.fixture
async def scene(
    tmp_path: Path, folder: Payments, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Scene]:
    ears = Ears(capsys)
    provider = Provider(0, access_token=ears.plant("access token", "canary-access-90ff1c"))
    monkeypatch.setattr(httpx2, "AsyncHTTPTransport", lambda **_: provider.transport)
    folder.write("tools/transfer.json", TRANSFER)
    folder.rules(gate("look", "finance", action="transfer", when='context.input.account == "acct-asked"'))
    token_file, hook_file = tmp_path / "metrics-token", tmp_path / "hook-secret"
    token_file.write_text(ears.plant("metrics token", "canary-metrics-1b2c3d"))
    hook_file.write_text(ears.plant("webhook secret", WEBHOOK_SECRET))
    for file in (token_file, hook_file):
        file.chmod(0o600)
    names = ("argument", "argument inside", "client secret", "key")
    for name, value in zip(names, (PIN, CARD, SECRET, KEY), strict=True):
        ears.plant(name, value)
    hook = {"name": "billing", "url": "https://hooks.example/canary", "secret_files": [hook_file]}
    more = {"providers": [CORP], "api_keys": True, "metrics_token_file": token_file, "webhooks": [hook]}
    monkeypatch.setattr("policy_service.http_clients._resolve_allowed", _public)
    with ears.open():
        async with running(tmp_path / "data", folder.path, **more) as world:
            provider.now = int(world.clock().timestamp())
            with ears.at(world):
                robot, maya = await world.agent("robot"), await world.person("maya")
                ears.plant("agent key", robot.key.to_pem().decode().splitlines()[1])
                for name in (CURRENT, NEXT, NONCE_SECRET):
                    raw = (world.settings.key_dir / name).read_bytes()
                    key = raw.decode().splitlines()[1] if b"BEGIN" in raw else repr(raw)[2:-1]
                    ears.plant(f"key {name}", key)
                ears.plant("session cookie", maya.cookie)
                ears.plant("form token", maya.csrf)
                yield Scene(world, ears, provider, robot, maya)


def silent(ears: Ears) -> None:
    """Nothing sings."""
    singing = ears.singing()
    assert not singing, "\n".join(singing)


def signature(token: str) -> str:
    """The part of a token that makes it worth something."""
    return token.rpartition(".")[2]


async def signed_in_by_corp(scene: Scene, **changed: str) -> httpx2.Response:
    """Through the provider and back, with something changed on the way."""
    http, ears = scene.world.http, scene.ears
    left = await http.get("/sign-in/corp")
    assert left.status_code == 303
    ears.plant("sealed note", left.headers["set-cookie"].partition("=")[2].partition(";")[0])
    asked = parse_qs(urlsplit(left.headers["location"]).query)
    answer = scene.provider.authorize(left.headers["location"])
    code = ears.plant("code", f"canary-{answer['code']}-c0de")
    scene.provider._codes[code] = scene.provider._codes.pop(answer["code"])
    ears.plant("state", asked["state"][0])
    ears.plant("nonce of the sign-in", asked["nonce"][0])
    scene.ears.heard.pop()  # the redirect itself carries state and nonce to the provider: that is what it is for
    back = await http.get("/sign-in/corp/callback", params={**answer, "code": code, **changed})
    if cookie := [v for v in back.headers.get_list("set-cookie") if v.startswith("countersign_dev=")]:
        ears.plant("session of corp", cookie[0].partition("=")[2].partition(";")[0])
    http.cookies.clear()
    return back


async def test_no_secret_leaks_if_all_goes_well(scene: Scene) -> None:
    world, ears, robot, maya = scene.world, scene.ears, scene.robot, scene.maya
    key = ears.plant("API key", (await world.operator("api-key", {"name": "robot"}))["api_key"])
    view = await scene.submit(await scene.transfer("acct-asked"), run_key="asked")
    effect = view["effects"][0]
    review = effect["review"]["review_id"]
    for path in ("/", f"/reviews/{review}", "/v1/reviews", f"/v1/reviews/{review}", "/v1/audit", "/v1/tasks"):
        assert (await maya.get(path)).status_code == 200, path
    assert (await maya.vote(view, reason="looks right")).status_code == 200
    spent = (await robot.redeem(await scene.released(await robot.see(view["txn"])))).json()
    ears.plant("receipt", signature(spent["receipt"]))
    outcome = {"effect_id": effect["effect_id"], "outcome": "failed", "error": "no such account"}
    assert (await robot.report(robot.attempt, outcome)).status_code == 200
    await maya.get(f"/reviews/{review}")
    bearer = {"Authorization": f"Bearer {key}"}
    assert (await world.http.get(f"/v1/transactions/{view['txn']}", headers=bearer)).status_code == 200
    await signed_in_by_corp(scene)
    link = (await world.operator("sign-in-link", {"sub": "tomas", "name": "Tomas"}))["url"]
    ears.plant("sign-in link", link.partition("token=")[2])
    for path in (link.removeprefix(world.settings.public_url), "/readyz", "/healthz", "/metrics"):
        await world.http.get(path)
    await world.sweep()
    await world.service.watch.look()
    assert len(ears.canaries) > 15
    silent(ears)
    structlog.get_logger("x").info("x", pin=PIN)  # and a secret that is said aloud is heard
    await world.http.get(f"/{CARD}")
    assert {line.split(" in ")[0] for line in ears.singing()} == {"argument", "argument inside"}


# -- refusals ----------------------------------------------------------------------------------------------------


async def test_no_secret_leaks_in_refusals_of_an_agent(scene: Scene) -> None:
    robot, world = scene.robot, scene.world
    good = await scene.transfer()
    view = await scene.submit(good, run_key="spent")
    tokens = await scene.released(view)
    await scene.submit(good, run_key="another")  # the key was used for something else
    wrong: list[dict[str, Any]] = [
        {"pin": {"deep": PIN}}, {"pin": [PIN]}, {"card": PIN}, {"card": {"number": CARD, "unknown": CARD}},
        {"unknown": CARD}, {"account": 1.5, "pin": PIN}, {"__entity": PIN},
    ]  # fmt: skip
    for args in wrong:
        await robot.submit(await scene.transfer(**args), run_key="wrong args")
    of_another = good | {"resource": {"type": "Account", "id": PIN}}
    for body in (
        f'{{"run_key": "{PIN}'.encode(),
        f'{{"unknown": "{CARD}"}}'.encode(),
        f'{{"run_key": "r", "effects": "{PIN}"}}'.encode(),
        f'{{"run_key": "r", "effects": [{{"tool": "transfer", "args": "{PIN}"}}]}}'.encode(),
        f'{{"run_key": "r", "run_key": "{PIN}"}}'.encode(),
        f'["{PIN}", \xff'.encode("latin-1"),
        {"run_key": "r", "effects": [good | {"call_key": PIN}]},
        {"run_key": "r", "effects": [of_another]},
        {"run_key": "r", "effects": [good], "attempt_id": {"x": PIN}},
        {"run_key": PIN * 20, "effects": [good]},
    ):
        await robot.send("POST", "/v1/transactions", body, headers={"Idempotency-Key": KEY})
        for path in ("/v1/evaluations", "/v1/redemptions", "/v1/outcomes"):
            await robot.send("POST", path, body)
    await robot.send("POST", "/v1/transactions", {"effects": []}, headers={"Content-Type": "x"})
    for token in (tokens[0][:-4] + "AAAA", tokens[0] + ".x", PIN, tokens[0].replace(".", "", 1)):
        scene.ears.plant(f"a token of {len(token)}", token)
        await robot.redeem([token])
    stranger = await world.agent("stranger")
    await stranger.redeem(tokens)
    await stranger.send("GET", f"/v1/transactions/{view['txn']}")
    await robot.report("no such attempt", {"effect_id": view["effects"][0]["effect_id"], "outcome": "fired"})
    await robot.send("POST", f"/v1/transactions/{view['txn']}/release", {"rev": 99})
    await robot.send("POST", f"/v1/transactions/{view['txn']}/compensate", {"effect_id": DIGEST})
    await robot.send("GET", "/v1/transactions/nothing")
    assert len([one for one in scene.ears.heard if one.where.startswith("answer /v1")]) > 40
    silent(scene.ears)


async def test_no_secret_leaks_in_a_refused_proof(scene: Scene) -> None:
    robot, world, ears = scene.robot, scene.world, scene.ears
    other = PrivateKey.generate()
    now = int(world.clock().timestamp())
    good = {"agent": "robot", "method": "GET", "url_path": "/v1/audit", "query": "", "body": b"", "now": now}
    await robot.send("GET", "/v1/audit")
    changes: tuple[dict[str, Any], ...] = ({}, {"now": now - 9_000}, {"method": "PUT"}, {"nonce": "stale"})
    asked = (*changes, {"key": other})
    proofs = [make_proof(**{"key": robot.key, **good, "nonce": robot.nonce, **one}) for one in asked]
    for n, proof in enumerate([*proofs, proofs[0][:-8] + "AAAAAAAA"]):
        ears.plant(f"proof {n}", signature(proof))
        for _ in range(2):  # the second time it is a replay
            await world.http.get("/v1/audit", headers={"Agent-Proof": proof})
    for bearer in ("Bearer canary-bearer-00aa11", "Basic Y2FuYXJ5LWJhc2ljLTAw", "Bearer"):
        ears.plant(f"authorization {bearer[:6]}", (bearer + " " * 12)[:27].strip().ljust(12, "-"))
        await world.http.get("/v1/audit", headers={"Authorization": bearer})
        await world.http.get("/metrics", headers={"Authorization": bearer})
    private = base64.urlsafe_b64encode(b"canary-private-key-of-an-agent-!").decode().rstrip("=")
    ears.plant("private JWK", private)
    jwk = other.public.jwk() | {"d": private}
    await robot.send("POST", "/v1/agent-keys", {"token": PIN, "jwk": jwk})
    silent(ears)


async def test_no_secret_leaks_in_refusals_of_a_person(scene: Scene) -> None:
    maya, world, ears = scene.maya, scene.world, scene.ears
    view = await scene.submit(await scene.transfer("acct-asked"))
    path = f"/v1/reviews/{view['effects'][0]['review']['review_id']}/votes"
    page = f"/reviews/{view['effects'][0]['review']['review_id']}"
    await scene.robot.submit(await scene.transfer("acct-asked", pin="another-pin-0000"), run_key="run-1")
    ears.plant("the other pin", "another-pin-0000")
    assert (await maya.vote(view)).status_code == 409
    wrong = maya.headers() | {"X-CSRF-Token": "canary-wrong-csrf"}
    ears.plant("wrong form token", "canary-wrong-csrf")
    said = json.dumps({"verdict": PIN, "unknown": CARD}).encode()
    fields = {"csrf_token": "canary-wrong-csrf", "x": PIN}
    for headers in (wrong, maya.headers() | {"Origin": "https://evil.example"}, maya.headers()):
        await world.http.post(path, content=said, headers=headers)
        form = {k: v for k, v in headers.items() if k != "Content-Type"}
        for place in (f"{page}/vote", "/sign-out"):
            await world.http.post(place, data=fields, headers=form)
    ears.plant("wrong cookie", "canary-wrong-cookie")
    for url in ("/", page, "/v1/reviews", "/v1/audit", "/events", "/queue/live?since=x"):
        await world.http.get(url, headers={"Cookie": "countersign_dev=canary-wrong-cookie"})
    origin = {"Origin": world.settings.public_url}
    spent = (await world.operator("sign-in-link", {"sub": "tomas", "name": "Tomas"}))["url"]
    token = ears.plant("spent link", spent.partition("token=")[2])
    for _ in range(2):
        await world.http.post("/sign-in/dev", data={"token": token}, headers=origin)
        world.http.cookies.clear()
    await world.http.post("/sign-in/dev", data={"token": token, "unknown": CARD}, headers=origin)
    await world.http.get("/sign-in/dev?token=" + token * 50)
    silent(ears)


# What the provider does otherwise, and what is changed on the way back from it.
FAULTS: list[tuple[dict[str, Any], dict[str, str]]] = [
    ({}, {"state": "canary-other-state"}),
    ({}, {"iss": "canary-other-iss"}),
    ({}, {"error": "canary_error_here"}),
    ({"refuses_codes": {"error": "invalid_grant"}}, {}),
    ({"header": {"alg": "none"}}, {}),
    ({"id_token": {"aud": "canary-audience-of-another"}}, {}),
    ({"id_token": {"nonce": "canary-nonce-of-another"}}, {}),
    ({"id_token": {"exp": 1}}, {}),
    ({"id_token": {"at_hash": "canary-at-hash"}}, {}),
    ({"userinfo": {"sub": "somebody else"}}, {}),
    ({"odd": {"/token": "redirect"}}, {}),
    ({"odd": {"/token": "no JSON"}}, {}),
    ({"odd": {"/token": "500"}}, {}),
    ({"down": {"/token"}}, {}),
]
KEYS_AT_FAULT: list[Any] = [({"published": ()}, {}), ({"published": ("k2",)}, {})]


@pytest.mark.parametrize("faults", [FAULTS, *([one] for one in KEYS_AT_FAULT)], ids=["any", "no keys", "key"])
async def test_no_secret_leaks_if_a_provider_fails(scene: Scene, faults: list[Any]) -> None:
    honest = dict(vars(scene.provider))
    for fault, changed in faults:
        vars(scene.provider).update(honest | fault)
        assert (await signed_in_by_corp(scene, **changed)).status_code >= 400, fault or changed
    silent(scene.ears)


# -- crashes -----------------------------------------------------------------------------------------------------

OF_A_REQUEST: dict[str, tuple[Any, str]] = {
    "the policy engine": ("policy_service.workflow.effects.evaluation", "decide"),
    "the facts": (Bundle, "facts_for"),
    "a unit of work": ("policy_service.workflow.effects.revisions", "insert_at_end"),
    "the log": ("policy_service.storage.unit_of_work", "canonicalize"),
    "the signer": (Signer, "sign_receipt"),
    "the answer": (TransactionPresenter, "transaction"),
    "a page": (Pages, "draw"),
    "the sessions": (Sessions, "find"),
    "the proofs": ("policy_service.identity.proofs", "verify_proof"),
    "the bodies": ("policy_service.channels.http.transactions", "read_model"),
    "a vote": ("policy_service.workflow.reviews.vote", "count_votes"),
}
OF_A_LOOP: dict[str, tuple[Any, str]] = {
    "a sweep": ("policy_service.workflow.expiry.sweep", "due_page"),
    "the outbox": ("policy_service.storage.outbox", "claim"),
    "the sequencer": ("policy_service.audit.log", "_has_unnumbered"),
    "the feed": ("policy_service.audit.feed", "entries_after"),
    "the watch": ("policy_service.jobs.health_monitor", "highest_index"),
    "the count": ("policy_service.audit.telemetry", "_span_attributes"),
    "a webhook": ("policy_service.jobs.delivery", "deliver"),
    "a webhook's signature": ("policy_service.workflow.webhooks", "sign_webhook"),
}


class CanaryError(Exception):
    """A fault that quotes all it knows, as some libraries' do."""


# Those of a request break one after the other; a loop that broke waits before it goes on, so each has its own service.
LAYERS = [OF_A_REQUEST, *({name: layer} for name, layer in OF_A_LOOP.items())]


@pytest.mark.parametrize("layers", LAYERS, ids=["of a request", *OF_A_LOOP])
async def test_no_secret_leaks_if_a_layer_breaks(
    scene: Scene, layers: dict[str, tuple[Any, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    ears = scene.ears
    for layer, (where, name) in layers.items():
        effect = await scene.transfer("acct-asked")
        asked = (await scene.robot.submit(effect, run_key=f"{layer}, asked")).json()
        ready = (await scene.robot.submit(await scene.transfer(), run_key=f"{layer}, ready")).json()
        tokens = await scene.released(ready)
        failing = broken(" ".join(ears.canaries.values()))
        with monkeypatch.context() as patch:
            patch.setattr(import_module(where) if isinstance(where, str) else where, name, failing)
            await everything_asked(scene, layer, asked, tokens)
            await until(partial(getattr, failing, "called"))
    silent(ears)


def broken(canaries: str) -> Mock:
    """What fails whenever it is called, quoting all canaries, which are among its variables as well."""

    def fail(*_: Any, **__: Any) -> None:
        try:
            raise ValueError(canaries)
        except ValueError as error:
            raise CanaryError(f"it quotes {canaries}") from error

    return Mock(side_effect=fail)


async def everything_asked(scene: Scene, layer: str, asked: dict[str, Any], tokens: list[str]) -> None:
    """One request of each kind, every job and every loop, while the layer is broken."""
    service = scene.world.service
    await scene.robot.submit(await scene.transfer("acct-2"), run_key=f"{layer}, during")
    await scene.robot.redeem(tokens, asked["txn"][:16])
    await scene.maya.get("/")
    await scene.maya.vote(asked)
    await scene.robot.send("GET", f"/v1/transactions/{asked['txn']}")
    for job in service.scheduler._jobs:
        await service.scheduler._tick(job)
    for loop in (service.sequencer.number, service.feed.refresh, service.watch.look):
        with contextlib.suppress(CanaryError):
            await loop()
