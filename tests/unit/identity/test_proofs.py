"""Proofs authenticate exactly one request, now; any other is 401 without a reason for the caller."""

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import structlog
from sqlalchemy import text

from countersign.contract import PrivateKey, make_proof, sign
from countersign.contract.keys import decode_base64url, encode_base64url
from policy_service.errors import UnauthenticatedError
from policy_service.identity import agents
from policy_service.identity.agents import Caller, make_api_key, revoke_api_keys
from policy_service.identity.proofs import Authenticator, Nonces, RequestHead
from policy_service.storage.database import Database
from tests.unit.identity.parties import START, Clock, lines, settings

KEY, OTHERS_KEY = PrivateKey.generate(), PrivateKey.generate()
NOW = int(START.timestamp())
PATH, QUERY, BODY = "/v1/transactions/%7Eabc", "a=1&b=%20", b'{"run_key":"r"}'
REQUEST = RequestHead("POST", PATH, QUERY, None, None)


@dataclass
class Door:
    """An authenticator with two enrolled agents."""

    db: Database
    clock: Clock
    authenticator: Authenticator

    def proof(self, key: PrivateKey = KEY, **other: Any) -> str:
        """A proof of this very request, but for what is said otherwise."""
        claims = {
            "agent": "bot", "method": "POST", "url_path": PATH, "query": QUERY, "body": BODY, "now": NOW,
            "nonce": self.authenticator.current_nonce(),
        }  # fmt: skip
        return make_proof(key, **{**claims, **other})

    async def knock(self, proof: str | None, request: RequestHead = REQUEST) -> Caller:
        return await self.authenticator.authenticate(replace(request, proof=proof), BODY)

    async def refused(self, proof: str | None, request: RequestHead = REQUEST) -> str:
        with pytest.raises(UnauthenticatedError) as caught:
            await self.knock(proof, request)
        return caught.value.code.value


@pytest.fixture
def door(store: Database, tmp_path: Path) -> Door:
    for name, key in (("bot", KEY), ("other-bot", OTHERS_KEY)):
        store.write_sync(lambda tx, name=name: agents.enroll(tx, name))
        store.write_sync(lambda tx, name=name, key=key: agents.add_key(tx, name, key.public))
    clock = Clock()
    return Door(store, clock, Authenticator(store, Nonces(b"s" * 32, 60), settings(tmp_path), clock))


@pytest.fixture
def said() -> Iterator[list[Any]]:
    """What was logged."""
    with structlog.testing.capture_logs() as logs:
        yield logs


async def test_a_proof_of_this_request_is_its_agent(door: Door) -> None:
    assert await door.knock(door.proof()) == Caller("bot", KEY.public.kid, "key")
    with pytest.raises(UnauthenticatedError, match="Agent-Proof") as caught:
        await door.knock(None)
    assert caught.value.code.value == "unauthenticated"


ELSE: list[dict[str, Any]] = [
    *({"url_path": path} for path in ("/v1/redemptions", "/v1/transactions/~abc")),  # the other, and decoded
    *({"query": query} for query in ("", "a=1&b=+")),
    *({"body": body} for body in (b"", b'{"run_key": "r"}')),
    *({"now": now} for now in (NOW - 3600, NOW + 3600)),
    *({"agent": name} for name in ("other-bot", "unknown")),
    {"method": "GET"},
]


async def test_a_proof_of_anything_else_is_refused(door: Door) -> None:
    """C19, B10."""
    for other in ELSE:
        assert await door.refused(door.proof(**other)) == "bad_proof", other


async def test_a_head_is_refused_before_its_body_is_read(door: Door) -> None:
    for other in ({}, {"nonce": "x" * 24}, *ELSE):
        presented = replace(REQUEST, proof=door.proof(**other))
        if not other or "body" in other:
            await door.authenticator.check_head(presented)
            continue
        with pytest.raises(UnauthenticatedError) as caught:
            await door.authenticator.check_head(presented)
        assert caught.value.code.value == ("use_nonce" if "nonce" in other else "bad_proof"), other


async def test_a_head_without_a_live_key_is_refused_before_its_body_is_read(door: Door) -> None:
    strangers = [{"proof": door.proof(key)} for key in (PrivateKey.generate(), OTHERS_KEY)]
    for head in (*strangers, {"authorization": "Bearer unknown"}):
        with pytest.raises(UnauthenticatedError):
            await door.authenticator.check_head(replace(REQUEST, **head))


@pytest.mark.parametrize("nonce", ["old", "", "x" * 24])
async def test_an_old_or_missing_nonce_asks_for_another_try(door: Door, nonce: str) -> None:
    old = door.authenticator.current_nonce()
    door.clock.later(0 if nonce != "old" else 180)
    proof = door.proof(nonce=old if nonce == "old" else nonce, now=int(door.clock.now.timestamp()))
    assert await door.refused(proof) == "use_nonce"
    assert (await door.knock(door.proof(now=int(door.clock.now.timestamp())))).agent == "bot"


async def test_a_wrong_nonce_does_not_hide_a_wrong_signature(door: Door) -> None:
    """Or a stranger could learn whose keys are enrolled by what the answer asks for."""
    claims = json.loads(decode_base64url(door.proof(nonce="x" * 24).split(".")[1]))
    forged = sign(claims, typ="agent-proof+jwt", key=OTHERS_KEY)
    head = door.proof().split(".")[0]
    assert await door.refused(f"{head}.{forged.split('.', 1)[1]}") == "bad_proof"


async def test_a_proof_by_another_key_than_the_agents_is_refused(door: Door) -> None:
    assert await door.refused(door.proof(PrivateKey.generate())) == "bad_proof"
    assert await door.refused(door.proof(OTHERS_KEY)) == "bad_proof"
    assert (await door.knock(door.proof(OTHERS_KEY, agent="other-bot"))).agent == "other-bot"


async def test_a_revoked_key_is_refused_from_that_moment(door: Door) -> None:
    proof = door.proof()
    await door.knock(proof)
    await door.db.write(lambda tx: agents.revoke_key(tx, KEY.public.kid))
    assert await door.refused(proof) == "bad_proof"


NO_PROOFS = *"  . .. x a.b.c =.=.= e30.e30. bnVsbA.e30.AA W10.e30.AA".split(" "), "\udc80.a.b", "A" * 20_000


async def test_what_is_no_proof_is_refused(door: Door) -> None:
    another_kind = sign({"sub": "bot", "htm": "POST", "path": PATH}, typ="effect-release+jwt", key=KEY)
    for token in (*NO_PROOFS, another_kind):
        assert await door.refused(token) == "bad_proof", token


NO_KIDS = [None, 1, ["x"], "", "a\nforged line", "\x1b[2J", "../../etc/passwd", "' OR 1=1 --", "A" * 400]


async def test_a_key_id_that_is_none_is_neither_looked_up_nor_logged(door: Door, said: list[Any]) -> None:
    """C4, K6."""
    for kid in NO_KIDS:
        header = json.dumps({"alg": "Ed25519", "typ": "agent-proof+jwt", "kid": kid}).encode()
        assert await door.refused(f"{encode_base64url(header)}.e30.AA") == "bad_proof"
    assert [line["kid"] for line in said if line["event"] == "proof_refused"] == [None] * len(NO_KIDS)


async def test_every_refusal_reads_the_same_and_only_the_log_says_why(door: Door, said: list[Any]) -> None:
    proofs = [door.proof(PrivateKey.generate()), door.proof(body=b""), door.proof(agent="other-bot"), "x"]
    texts = set()
    for proof in proofs:
        with pytest.raises(UnauthenticatedError) as caught:
            await door.knock(proof)
        texts.add((str(caught.value), caught.value.code))
    assert len(texts) == 1
    assert len({line["why"] for line in said}) >= 3


# -- API keys ----------------------------------------------------------------------------------------------


async def by_key(db: Database, folder: Path, header: str, allowed: bool = True, **more: str) -> Caller:
    authenticator = Authenticator(db, Nonces(b"s" * 32, 60), settings(folder, api_keys=allowed), Clock())
    return await authenticator.authenticate(replace(REQUEST, authorization=header, **more), BODY)


async def test_an_api_key_is_its_agent_and_bound_to_no_key(door: Door, tmp_path: Path) -> None:
    secret = await door.db.write(lambda tx: make_api_key(tx, "bot"))
    assert secret.startswith("csk_")
    good = f"Bearer {secret}"
    assert await by_key(door.db, tmp_path, good) == Caller("bot", None, "api_key")
    with pytest.raises(UnauthenticatedError, match="switched off"):
        await by_key(door.db, tmp_path, good, allowed=False)
    for scheme in ("", "bearer ", "Basic "):
        with pytest.raises(UnauthenticatedError):
            await by_key(door.db, tmp_path, scheme + secret)
    with pytest.raises(UnauthenticatedError):  # a bad proof is not saved by a good key
        await by_key(door.db, tmp_path, good, proof="x")
    assert await door.db.write(lambda tx: revoke_api_keys(tx, "bot")) == 1
    assert await door.db.write(lambda tx: revoke_api_keys(tx, "bot")) == 0
    with pytest.raises(UnauthenticatedError, match="revoked"):
        await by_key(door.db, tmp_path, good)


async def test_what_is_no_api_key_is_refused(door: Door, tmp_path: Path) -> None:
    """C13: an ID token or a chat token is no API key."""
    await door.db.write(lambda tx: make_api_key(tx, "bot"))
    for secret in ("", "csk_", "csk_x", "\udc80", "eyJhbGciOiJub25lIn0.e30."):
        with pytest.raises(UnauthenticatedError):
            await by_key(door.db, tmp_path, f"Bearer {secret}")


async def test_no_table_and_no_line_holds_the_secret(door: Door) -> None:
    secret = await door.db.write(lambda tx: make_api_key(tx, "bot"))
    rows = await door.db.read(lambda conn: conn.execute(text("SELECT * FROM api_keys")).all())
    held = str(rows) + str(lines(door.db))
    assert "api_key_made" in held
    assert secret.removeprefix("csk_") not in held
