"""Agents whose platform vouches for them: tokens of a third-party issuer in the shapes of the real ones."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx2
import pytest
from structlog.testing import capture_logs

from countersign.contract import PrivateKey, make_proof
from policy_service.identity import agents
from policy_service.storage.core import table
from policy_service.storage.plumbing import AuditRow
from tests.counterparts import node
from tests.fakes.log_check import faults_of_log
from tests.fakes.world import URL, Agent, World, running
from tests.integration.service.effects import refund
from tests.integration.service.together.bank import refusal

pytestmark = pytest.mark.anyio

# What each platform puts into its tokens, beside the times: subject and claims as documented by each.
KUBERNETES = {
    "sub": "system:serviceaccount:shop:desk",
    "aud": [URL, "https://kubernetes.default.svc"],
    "kubernetes.io": {"namespace": "shop", "serviceaccount": {"name": "desk", "uid": "6b2c"}},
}
GITHUB_ACTIONS = {
    "sub": "repo:acme/shop:environment:production",
    "aud": URL,
    "repository": "acme/shop",
    "environment": "production",
    "job_workflow_ref": "acme/shop/.github/workflows/release.yml@refs/heads/main",
}
SPIFFE = {"sub": "spiffe://acme.example/desk", "aud": [URL], "iss": None}
CLIENT_CREDENTIALS = {"sub": "desk-client", "client_id": "desk-client", "aud": URL, "scope": "agent"}
RULES = [
    {"agent": "desk", "claims": {"sub": "system:serviceaccount:shop:desk"}},
    {
        "agent": "desk",
        "claims": {
            "repository": "acme/shop",
            "environment": "production",
            "job_workflow_ref": "acme/shop/.github/workflows/release.yml@refs/heads/main",
        },
    },
    {"agent": "desk", "claims": {"client_id": "desk-client"}},
    {"agent": "nobody", "claims": {"sub": "never-enrolled"}},
    {"agent": "other", "claims": {"sub": "only-other"}},
    {"agent": "desk", "claims": {"sub": "both"}},
    {"agent": "other", "claims": {"sub": "both"}},
]


@pytest.fixture
async def world(tmp_path: Path, factory: node.TokenFactory) -> AsyncIterator[World]:
    """A service that trusts the factory twice: as an issuer, and as the keys of a trust domain."""
    issuers = [
        {"name": "platform", "issuer": factory.issuer, "agents": RULES, "max_age_s": 3600},
        {
            "name": "mesh",
            "kind": "spiffe",
            "trust_domain": "acme.example",
            "jwks_url": f"{factory.issuer}/jwks",
            "agents": [{"agent": "desk", "claims": {"sub": "spiffe://acme.example/desk"}}],
        },
    ]
    async with running(tmp_path / "data", trusted_issuers=issuers) as started:
        await started.operator("agent-enroll", {"name": "desk", "roles": ["support-agent"]})
        await started.operator("agent-enroll", {"name": "other"})
        yield started
        assert await started.service.db.read(faults_of_log) == []


async def bring(
    world: World, token: str, key: PrivateKey, *, agent: str = "desk", proof_by: PrivateKey | None = None
) -> httpx2.Response:
    """Bring a key as an agent would, with a nonce asked for before."""
    raw = json.dumps({"token": token, "x": key.public.jwk()["x"]}).encode()
    nonce = (await world.http.get("/v1/tools/refund")).headers["agent-nonce"]
    proof = make_proof(
        proof_by or key,
        agent=agent,
        method="POST",
        url_path="/v1/agent-keys",
        query="",
        body=raw,
        nonce=nonce,
        now=int(world.clock().timestamp()),
    )
    headers = {"Agent-Proof": proof, "Content-Type": "application/json"}
    return await world.http.post("/v1/agent-keys", content=raw, headers=headers)


def timed(claims: Mapping[str, Any], *, life: int = 600, ago: int = 0) -> dict[str, Any]:
    now = int(time.time()) - ago
    return {"iat": now, "exp": now + life, "nbf": now, **claims}


SHAPES = {
    "Kubernetes service account": (KUBERNETES, {}),
    "GitHub Actions": (GITHUB_ACTIONS, {}),
    "SPIFFE": (SPIFFE, {}),
    "OIDC client credentials": (CLIENT_CREDENTIALS, {"typ": "at+jwt"}),
}


async def test_a_key_a_platform_vouches_for_signs_like_an_enrolled_one(
    world: World, factory: node.TokenFactory
) -> None:
    for what, (claims, header) in SHAPES.items():
        key = PrivateKey.generate()
        answer = await bring(world, factory.sign(timed(claims), header), key)
        assert answer.status_code == 201, what
        assert (answer.json()["agent"], answer.json()["kid"]) == ("desk", key.public.kid)
        agent = Agent("desk", key, world.http, world.clock)
        submitted = await agent.submit(await refund(world), run_key=what)
        assert submitted.json()["state"] == "ready", submitted.text
        spent = await agent.spend(submitted.json(), what.replace(" ", "-"))
        assert world.receipt_of(spent).cnf_jkt == key.public.kid
    private = {"app_id": 7, "client_id": "desk", "x5t": ["no", "text"], "note": "n" * 600}
    ignored = factory.sign(timed(KUBERNETES), private)
    assert (await bring(world, ignored, PrivateKey.generate())).status_code == 201


WRONG: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "made for another service": (KUBERNETES | {"aud": ["https://elsewhere.example"]}, {}),
    "made for nobody": (KUBERNETES | {"aud": None}, {}),
    "another service account": (KUBERNETES | {"sub": "system:serviceaccount:shop:desk2"}, {}),
    "another workflow of the repository": (
        GITHUB_ACTIONS | {"job_workflow_ref": "acme/shop/.github/workflows/x.yml@refs/heads/main"},
        {},
    ),
    "a pull request's environment": (GITHUB_ACTIONS | {"environment": None}, {}),
    "another trust domain": (SPIFFE | {"sub": "spiffe://evil.example/desk"}, {}),
    "another workload": (SPIFFE | {"sub": "spiffe://acme.example/desk/x"}, {}),
    "an issuer nobody trusts": (KUBERNETES | {"iss": "https://evil.example"}, {}),
    "no issuer": (KUBERNETES | {"iss": None}, {}),
    "expired": (timed(KUBERNETES, ago=700), {}),
    # long after the start of this run, when the table is built
    "not valid yet": (KUBERNETES | {"nbf": int(time.time()) + 86_400}, {}),
    "living too long": (timed(KUBERNETES, life=3601), {}),
    "without an end": (KUBERNETES | {"exp": None}, {}),
    "without a beginning": (KUBERNETES | {"iat": None}, {}),
    "bound to another key": (KUBERNETES | {"cnf": {"jkt": "A" * 43}}, {}),
    "bound to a certificate": (KUBERNETES | {"cnf": {"x5t#S256": "A" * 43}}, {}),
    "of a domain that is no address": (SPIFFE | {"sub": "spiffe://[acme.example/desk"}, {}),
    "with a key to fetch": (KUBERNETES, {"jku": "https://evil.example"}),
    "over, but for the leeway of clocks": (timed(KUBERNETES, life=60, ago=90), {}),
    "of another type": (KUBERNETES, {"typ": "agent-proof+jwt"}),
}


async def test_a_token_that_does_not_vouch_brings_no_key(world: World, factory: node.TokenFactory) -> None:
    for what, (claims, header) in WRONG.items():
        key = PrivateKey.generate()
        answer = await bring(world, factory.sign({**timed({}), **claims}, header), key)
        assert refusal(answer) == (401, "bad_proof"), what
        after = await Agent("desk", key, world.http, world.clock).submit(await refund(world))
        assert after.status_code == 401, what
    for token in ("x", "a.b.c", "..", "e30.e30.e30", "\u00e9", "e30.e30." + "A" * 9000):
        assert (await bring(world, token, PrivateKey.generate())).status_code == 401, token


CAUSES = {
    "its header brings a key or a content type of its own: jku": {"jku": "https://evil.example"},
    "'platform' publishes no key with kid 'other'": {"kid": "other"},
    "its typ is 'agent-proof+jwt', not one of JWT, at+jwt": {"typ": "agent-proof+jwt"},
}


async def test_the_log_names_why_a_platforms_token_is_refused(
    world: World, factory: node.TokenFactory
) -> None:
    tokens = {why: factory.sign(timed(KUBERNETES), header) for why, header in CAUSES.items()}
    head, claims, signature = factory.sign(timed(KUBERNETES)).split(".")
    tokens["its signature does not hold (issuer 'platform'"] = ".".join((head, claims, "A" * len(signature)))
    for why, token in tokens.items():
        with capture_logs() as logged:
            assert (await bring(world, token, PrivateKey.generate())).status_code == 401
        (line,) = [line for line in logged if line["event"] == "agent_token_refused"]
        assert line["why"].startswith(why)


async def test_a_token_that_was_seen_brings_nobody_elses_key_of_theirs(
    world: World, factory: node.TokenFactory
) -> None:
    """The key must be held, not only named: otherwise a thief could bring a victim's key, or none."""
    token, key = factory.sign(timed(KUBERNETES)), PrivateKey.generate()
    assert (await bring(world, token, key, proof_by=PrivateKey.generate())).status_code == 401
    assert (await bring(world, token, key, agent="other")).status_code == 401
    both = factory.sign(timed(KUBERNETES | {"sub": "both"}))  # which two rules give to two agents
    for agent in ("desk", "other"):
        assert (await bring(world, both, PrivateKey.generate(), agent=agent)).status_code == 401
    nobodys = factory.sign(timed(KUBERNETES | {"sub": "never-enrolled"}))
    unknown = await bring(world, nobodys, PrivateKey.generate(), agent="nobody")
    assert refusal(unknown) == (404, "not_found")


async def test_a_key_that_one_agent_brought_is_never_anothers(
    world: World, factory: node.TokenFactory
) -> None:
    key = PrivateKey.generate()
    bound = factory.sign(timed(KUBERNETES | {"cnf": {"jkt": key.public.kid}}))
    assert (await bring(world, bound, key)).status_code == 201
    others = factory.sign(timed(KUBERNETES | {"sub": "only-other"}))
    assert (await bring(world, others, key, agent="other")).status_code == 409


async def test_a_brought_key_ends_with_its_token_and_another_token_moves_its_end(
    world: World, factory: node.TokenFactory
) -> None:
    key = PrivateKey.generate()
    agent = Agent("desk", key, world.http, world.clock)
    assert (await bring(world, factory.sign(timed(KUBERNETES, life=600)), key)).status_code == 201
    world.clock.pass_(seconds=500)
    now = int(world.clock().timestamp())
    later = factory.sign(KUBERNETES | {"iat": now, "nbf": now, "exp": now + 600})
    assert (await bring(world, later, key)).status_code == 201
    world.clock.pass_(seconds=300)
    assert (await agent.submit(await refund(world))).status_code == 201
    world.clock.pass_(seconds=301)
    refused = await agent.submit(await refund(world), run_key=uuid4().hex)
    assert refusal(refused) == (401, "bad_proof")


async def test_a_brought_key_never_outlives_the_setting(tmp_path: Path, factory: node.TokenFactory) -> None:
    issuers = [{"name": "platform", "issuer": factory.issuer, "agents": RULES}]
    async with running(tmp_path / "data", trusted_issuers=issuers, agent_key_max_s=60) as world:
        await world.operator("agent-enroll", {"name": "desk", "roles": ["support-agent"]})
        key = PrivateKey.generate()
        assert (await bring(world, factory.sign(timed(KUBERNETES, life=3600)), key)).status_code == 201
        agent = Agent("desk", key, world.http, world.clock)
        assert (await agent.submit(await refund(world))).status_code == 201
        world.clock.pass_(seconds=61)
        assert (await agent.submit(await refund(world))).status_code == 401


async def test_a_revoked_key_cannot_be_brought_again(world: World, factory: node.TokenFactory) -> None:
    """Nor can another be brought by a token of before: whoever is to be kept out may hold it."""
    key, token = PrivateKey.generate(), factory.sign(timed(KUBERNETES))
    assert (await bring(world, token, key)).status_code == 201
    await world.operator("agent-key-revoke", {"kid": key.public.kid})
    assert (await bring(world, token, key)).status_code == 403
    assert (await bring(world, token, PrivateKey.generate())).status_code == 403
    world.clock.pass_(seconds=2)
    now = int(world.clock().timestamp())
    newer = factory.sign(KUBERNETES | {"iat": now, "nbf": now, "exp": now + 600})
    assert (await bring(world, newer, key)).status_code == 409, "what was revoked stays so"
    assert (await bring(world, newer, PrivateKey.generate())).status_code == 201
    refused = await Agent("desk", key, world.http, world.clock).submit(await refund(world))
    assert refused.status_code == 401


async def test_with_one_brought_key_end_all_that_its_issuer_brought(
    world: World, factory: node.TokenFactory
) -> None:
    """Whoever held the token may have brought several keys by it; enrolled ones are none of them."""
    brought, enrolled = [PrivateKey.generate(), PrivateKey.generate()], PrivateKey.generate()
    token = factory.sign(timed(KUBERNETES))
    assert [(await bring(world, token, key)).status_code for key in brought] == [201, 201]
    await world.operator("agent-key-add", {"name": "desk", "jwk": enrolled.public.jwk()})
    done = await world.operator("agent-key-revoke", {"kid": brought[0].public.kid})
    assert done["ended"] == sorted(key.public.kid for key in brought)
    for key, status in ((brought[0], 401), (brought[1], 401), (enrolled, 201)):
        agent = Agent("desk", key, world.http, world.clock)
        assert (await agent.submit(await refund(world), run_key=uuid4().hex)).status_code == status


async def test_a_frozen_agent_brings_no_key(world: World, factory: node.TokenFactory) -> None:
    await world.operator("freeze", {"agent": "desk"})
    answer = await bring(world, factory.sign(timed(KUBERNETES)), PrivateKey.generate())
    assert refusal(answer) == (403, "frozen")


async def test_one_token_does_not_bring_keys_without_end(
    world: World, factory: node.TokenFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(agents, "_MOST_BROUGHT", 2)
    token = factory.sign(timed(KUBERNETES))
    found = [(await bring(world, token, PrivateKey.generate())).status_code for _ in range(3)]
    assert found == [201, 201, 409]


async def test_an_enrolled_key_cannot_be_given_an_end_by_a_token(
    world: World, factory: node.TokenFactory
) -> None:
    key = PrivateKey.generate()
    await world.operator("agent-key-add", {"name": "desk", "jwk": key.public.jwk()})
    assert (await bring(world, factory.sign(timed(KUBERNETES)), key)).status_code == 409


async def test_an_issuer_that_left_the_settings_takes_its_keys_along(
    tmp_path: Path, factory: node.TokenFactory
) -> None:
    key = PrivateKey.generate()
    issuers = [{"name": "platform", "issuer": factory.issuer, "agents": RULES}]
    async with running(tmp_path / "data", trusted_issuers=issuers) as world:
        await world.operator("agent-enroll", {"name": "desk", "roles": ["support-agent"]})
        assert (await bring(world, factory.sign(timed(KUBERNETES)), key)).status_code == 201
    narrower = [issuers[0] | {"agents": RULES[1:]}]
    for changed in ([], narrower):
        async with running(tmp_path / "data", trusted_issuers=changed) as world:
            agent = Agent("desk", key, world.http, world.clock)
            assert (await agent.submit(await refund(world))).status_code == 401
    async with running(tmp_path / "data", trusted_issuers=issuers) as world:
        agent = Agent("desk", key, world.http, world.clock)
        assert (await agent.submit(await refund(world))).status_code == 201


async def test_the_log_says_who_vouched_and_holds_no_token(world: World, factory: node.TokenFactory) -> None:
    token = factory.sign(timed(KUBERNETES))
    await bring(world, token, PrivateKey.generate())
    rows = await world.service.db.read(lambda conn: conn.execute(table(AuditRow).select()).all())
    told = [json.loads(row.body) for row in rows if row.kind == "agent_key_brought"]
    assert [(one["agent"], one["issuer"], one["subject"]) for one in told] == [
        ("desk", "platform", KUBERNETES["sub"])
    ]
    assert token not in str(rows)


async def knock(world: World, body: bytes) -> tuple[int, str]:
    """What a stranger is answered who sends anything."""
    headers = {"Agent-Proof": "x", "Content-Type": "application/json"}
    answer = await world.http.post("/v1/agent-keys", content=body, headers=headers)
    return answer.status_code, answer.json()["code"]


LARGE = b'{"token":"' + b"x" * 20_000 + b'"}'
MANY = b'{"token":[' + b"1," * 100 + b"1]}"


async def test_of_a_stranger_nothing_is_read_that_is_larger_than_a_token_and_a_key(world: World) -> None:
    assert await knock(world, LARGE) == (413, "too_large")
    assert await knock(world, MANY) == (400, "too_many_nodes")


async def test_where_no_issuer_is_trusted_nobodys_body_is_read(tmp_path: Path) -> None:
    async with running(tmp_path / "data") as world:
        for body in (LARGE, MANY, b"{", b"{}"):
            assert await knock(world, body) == (401, "unauthenticated")
