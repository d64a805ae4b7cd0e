"""Keys vouched for by tokens of a third-party issuer, in the form of real platforms."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx2
import pytest
from structlog.testing import capture_logs

from countersign.contract import PrivateKey, make_proof
from policy_service.identity import agents
from policy_service.storage.core import table
from policy_service.storage.system_tables import AuditRow
from tests.counterparts import node
from tests.fakes.log_check import faults_of_log
from tests.fakes.world import URL, Agent, World, running
from tests.integration.service.effects import refund
from tests.integration.service.together.bank import refusal

pytestmark = pytest.mark.anyio

# What each platform puts into its tokens, in addition to the times: subject and claims as documented by each.
KUBERNETES = {"sub": "system:serviceaccount:shop:desk", "aud": [URL, "https://kubernetes.default.svc"]}
KUBERNETES["kubernetes.io"] = {"namespace": "shop", "serviceaccount": {"name": "desk", "uid": "6b2c"}}
WORKFLOW = {"repository": "acme/shop", "environment": "production"}
WORKFLOW["job_workflow_ref"] = "acme/shop/.github/workflows/release.yml@refs/heads/main"
GITHUB_ACTIONS = {"sub": "repo:acme/shop:environment:production", "aud": URL, **WORKFLOW}
SPIFFE = {"sub": "spiffe://acme.example/desk", "aud": [URL], "iss": None}
CLIENT_CREDENTIALS = {"sub": "desk-client", "client_id": "desk-client", "aud": URL, "scope": "agent"}
RULES = [
    {"agent": "desk", "claims": {"sub": "system:serviceaccount:shop:desk"}},
    {"agent": "desk", "claims": WORKFLOW},
    {"agent": "desk", "claims": {"client_id": "desk-client"}},
    {"agent": "unknown", "claims": {"sub": "never-enrolled"}},
    {"agent": "other", "claims": {"sub": "only-other"}},
    {"agent": "desk", "claims": {"sub": "both"}},
    {"agent": "other", "claims": {"sub": "both"}},
]


@pytest.fixture
async def world(tmp_path: Path, factory: node.TokenFactory) -> AsyncIterator[World]:
    """A service that trusts the factory twice: as an issuer, and as the keys of a trust domain."""
    rule = {"agent": "desk", "claims": {"sub": "spiffe://acme.example/desk"}}
    mesh = {"kind": "spiffe", "trust_domain": "acme.example", "jwks_url": f"{factory.issuer}/jwks"}
    platform = {"name": "platform", "issuer": factory.issuer, "agents": RULES, "max_age_s": 3600}
    issuers = [platform, {"name": "mesh", **mesh, "agents": [rule]}]
    async with running(tmp_path / "data", trusted_issuers=issuers) as started:
        await started.operator("agent-enroll", {"name": "desk", "roles": ["support-agent"]})
        await started.operator("agent-enroll", {"name": "other"})
        yield started
        assert await started.service.db.read(faults_of_log) == []


async def bring(
    world: World,
    token: str,
    key: PrivateKey | None = None,
    *,
    agent: str = "desk",
    by: PrivateKey | None = None,
) -> httpx2.Response:
    """Bring a key, or one of its own, as an agent would, with a nonce asked for before."""
    key = key or PrivateKey.generate()
    raw = json.dumps({"token": token, "x": key.public.jwk()["x"]}).encode()
    nonce = (await world.http.get("/v1/tools/refund")).headers["agent-nonce"]
    proof = make_proof(
        by or key, agent=agent, method="POST", url_path="/v1/agent-keys", query="", body=raw, nonce=nonce,
        now=int(world.clock().timestamp()),
    )  # fmt: skip
    headers = {"Agent-Proof": proof, "Content-Type": "application/json"}
    return await world.http.post("/v1/agent-keys", content=raw, headers=headers)


def timed(claims: dict[str, Any], *, life: int = 600, ago: int = 0, at: float = 0) -> dict[str, Any]:
    now = int(at or time.time()) - ago
    return {"iat": now, "exp": now + life, "nbf": now, **claims}


async def submits(world: World, key: PrivateKey) -> int:
    """The status of a submission that the key signs."""
    agent = Agent("desk", key, world.http, world.clock)
    answer = await agent.submit(await refund(world), run_key=uuid4().hex)
    assert answer.status_code == 201 or refusal(answer) == (401, "bad_proof")
    return answer.status_code


SHAPES: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("Kubernetes", KUBERNETES, {"app_id": 7, "x5t": ["no", "text"], "note": "n" * 600}),  # private members
    ("GitHub-Actions", GITHUB_ACTIONS, {}),
    ("SPIFFE", SPIFFE, {}),
    ("OIDC", CLIENT_CREDENTIALS, {"typ": "at+jwt"}),
]


async def test_a_key_a_platform_vouches_for_signs(world: World, factory: node.TokenFactory) -> None:
    for what, claims, header in SHAPES:
        key, token = PrivateKey.generate(), factory.sign(timed(claims), header)
        answer = await bring(world, token, key)
        assert answer.status_code == 201, what
        assert (answer.json()["agent"], answer.json()["kid"]) == ("desk", key.public.kid)
        agent = Agent("desk", key, world.http, world.clock)
        submitted = await agent.submit(await refund(world), run_key=what)
        assert submitted.json()["state"] == "ready", submitted.text
        assert world.receipt_of(await agent.spend(submitted.json(), what)).cnf_jkt == key.public.kid
    rows = await world.service.db.read(lambda conn: conn.execute(table(AuditRow).select()).all())
    found = next(json.loads(row.body) for row in rows if row.kind == "agent_key_brought")
    assert (found["agent"], found["issuer"], found["subject"]) == ("desk", "platform", KUBERNETES["sub"])
    assert token not in str(rows)


WRONG: list[tuple[dict[str, Any], dict[str, Any]]] = [
    (KUBERNETES | {"aud": ["https://elsewhere.example"]}, {}),
    (KUBERNETES | {"aud": None}, {}),
    (KUBERNETES | {"sub": "system:serviceaccount:shop:desk2"}, {}),
    (GITHUB_ACTIONS | {"job_workflow_ref": "acme/shop/.github/workflows/x.yml@refs/heads/main"}, {}),
    (GITHUB_ACTIONS | {"environment": None}, {}),
    (SPIFFE | {"sub": "spiffe://evil.example/desk"}, {}),
    (SPIFFE | {"sub": "spiffe://acme.example/desk/x"}, {}),
    (SPIFFE | {"sub": "spiffe://[acme.example/desk"}, {}),
    (KUBERNETES | {"iss": "https://evil.example"}, {}),
    (KUBERNETES | {"iss": None}, {}),
    (timed(KUBERNETES, ago=700), {}),
    (timed(KUBERNETES, life=60, ago=90), {}),  # over, but for the leeway of clocks
    (KUBERNETES | {"nbf": int(time.time()) + 86_400}, {}),  # long after the start of this run
    (timed(KUBERNETES, life=3601), {}),
    (KUBERNETES | {"exp": None}, {}),
    (KUBERNETES | {"iat": None}, {}),
    (KUBERNETES | {"cnf": {"jkt": "A" * 43}}, {}),
    (KUBERNETES | {"cnf": {"x5t#S256": "A" * 43}}, {}),
    (KUBERNETES, {"jku": "https://evil.example"}),
    (KUBERNETES, {"typ": "agent-proof+jwt"}),
]
LARGE, MANY = b'{"token":"' + b"x" * 20_000 + b'"}', b'{"token":[' + b"1," * 100 + b"1]}"


async def knock(world: World, body: bytes) -> tuple[int, str]:
    """What a stranger is answered who sends anything."""
    headers = {"Agent-Proof": "x", "Content-Type": "application/json"}
    return refusal(await world.http.post("/v1/agent-keys", content=body, headers=headers))


async def test_a_token_that_does_not_vouch_brings_no_key(world: World, factory: node.TokenFactory) -> None:
    with capture_logs() as logged:
        for claims, header in WRONG:
            key = PrivateKey.generate()
            answer = await bring(world, factory.sign({**timed({}), **claims}, header), key)
            assert refusal(answer) == (401, "bad_proof"), (claims, header)
            assert await submits(world, key) == 401
    reasons = [line["why"] for line in logged if line["event"] == "agent_token_refused"]
    assert reasons[-1] == "its typ is 'agent-proof+jwt', not one of JWT, at+jwt"
    assert len(reasons) == len(WRONG)
    for token in ("x", "a.b.c", "..", "e30.e30.e30", "\u00e9", "e30.e30." + "A" * 9000):
        assert (await bring(world, token)).status_code == 401, token
    assert await knock(world, LARGE) == (413, "too_large")
    assert await knock(world, MANY) == (400, "too_many_nodes")


async def test_without_trusted_issuers_no_body_is_read(tmp_path: Path) -> None:
    async with running(tmp_path / "data") as world:
        for body in (LARGE, MANY, b"{", b"{}"):
            assert await knock(world, body) == (401, "unauthenticated")


async def test_a_token_cannot_take_another_agents_key(world: World, factory: node.TokenFactory) -> None:
    """The key must be held, not only named: otherwise a thief could bring a victim's key, or none."""
    token, key = factory.sign(timed(KUBERNETES)), PrivateKey.generate()
    assert (await bring(world, token, key, by=PrivateKey.generate())).status_code == 401
    assert (await bring(world, token, key, agent="other")).status_code == 401
    both = factory.sign(timed(KUBERNETES | {"sub": "both"}))  # which two rules give to two agents
    for agent in ("desk", "other"):
        assert (await bring(world, both, agent=agent)).status_code == 401
    unenrolled = factory.sign(timed(KUBERNETES | {"sub": "never-enrolled"}))
    assert refusal(await bring(world, unenrolled, agent="unknown")) == (404, "not_found")
    bound = factory.sign(timed(KUBERNETES | {"cnf": {"jkt": key.public.kid}}))
    assert (await bring(world, bound, key)).status_code == 201
    others = factory.sign(timed(KUBERNETES | {"sub": "only-other"}))
    taken = await bring(world, others, key, agent="other")
    assert taken.status_code == 409, "a brought key is never another agent's"
    enrolled = PrivateKey.generate()
    await world.operator("agent-key-add", {"name": "desk", "jwk": enrolled.public.jwk()})
    assert (await bring(world, token, enrolled)).status_code == 409, "no token gives an enrolled key an end"


async def test_a_brought_key_ends_with_its_token(world: World, factory: node.TokenFactory) -> None:
    key = PrivateKey.generate()
    assert (await bring(world, factory.sign(timed(KUBERNETES)), key)).status_code == 201
    world.clock.pass_(seconds=500)
    later = factory.sign(timed(KUBERNETES, at=world.clock().timestamp()))
    assert (await bring(world, later, key)).status_code == 201  # another token moves its end
    world.clock.pass_(seconds=300)
    assert await submits(world, key) == 201
    world.clock.pass_(seconds=301)
    assert await submits(world, key) == 401


async def test_a_revoked_key_cannot_be_brought_again(world: World, factory: node.TokenFactory) -> None:
    """Nor another by a token of before; and all its issuer brought end with it, as a thief may have brought them."""
    key, sibling, enrolled = (PrivateKey.generate() for _ in range(3))
    token = factory.sign(timed(KUBERNETES))
    assert [(await bring(world, token, one)).status_code for one in (key, sibling)] == [201, 201]
    await world.operator("agent-key-add", {"name": "desk", "jwk": enrolled.public.jwk()})
    done = await world.operator("agent-key-revoke", {"kid": key.public.kid})
    assert done["ended"] == sorted(one.public.kid for one in (key, sibling))
    assert [await submits(world, one) for one in (key, sibling, enrolled)] == [401, 401, 201]
    assert (await bring(world, token, key)).status_code == 403
    assert (await bring(world, token)).status_code == 403
    world.clock.pass_(seconds=2)
    newer = factory.sign(timed(KUBERNETES, at=world.clock().timestamp()))
    assert (await bring(world, newer, key)).status_code == 409, "what was revoked stays so"
    assert (await bring(world, newer)).status_code == 201
    assert await submits(world, key) == 401


async def test_a_frozen_agent_and_one_with_many_bring_no_key(
    world: World, factory: node.TokenFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(agents, "_MAX_VOUCHED_KEYS", 2)
    token = factory.sign(timed(KUBERNETES))
    assert [(await bring(world, token)).status_code for _ in range(3)] == [201, 201, 409]
    await world.operator("freeze", {"agent": "desk"})
    assert refusal(await bring(world, token)) == (403, "frozen")


async def test_an_issuer_that_left_takes_its_keys_along(tmp_path: Path, factory: node.TokenFactory) -> None:
    key = PrivateKey.generate()
    issuers = [{"name": "platform", "issuer": factory.issuer, "agents": RULES}]
    async with running(tmp_path / "data", trusted_issuers=issuers, agent_key_max_s=60) as world:
        await world.operator("agent-enroll", {"name": "desk", "roles": ["support-agent"]})
        assert (await bring(world, factory.sign(timed(KUBERNETES, life=3600)), key)).status_code == 201
    for changed, status in (([], 401), ([issuers[0] | {"agents": RULES[1:]}], 401), (issuers, 201)):
        async with running(tmp_path / "data", trusted_issuers=changed) as world:
            assert await submits(world, key) == status
            world.clock.pass_(seconds=61)
            assert await submits(world, key) == 401
