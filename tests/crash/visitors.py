"""Chapters of those who are no agents: people who come through a provider, receivers of webhooks, newcomers."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from functools import partial

import httpx2
from sqlalchemy import Connection, select

from countersign.contract import PrivateKey, make_proof
from examples.person import Form, Person, _Forms
from policy_service.remote_hosts import Webhook
from policy_service.storage.core import table
from policy_service.storage.credential_tables import SessionRow
from policy_service.storage.system_tables import AuditRow, WebhookRow
from policy_service.tokens.keys import MIN_PUBLISHED_S, NEXT, make_webhook_key, read_webhook_keys
from tests.counterparts import node
from tests.crash.agent import AGENT
from tests.crash.chapters import finished, open_reviews
from tests.crash.story import Story
from tests.fakes.receivers import Receiver, Step
from tests.integration.identity.browsing import Browser


def signs_in(story: Story) -> None:
    """A person comes through a provider and leaves."""
    people = {"maya": {"name": "Maya Okafor", "groups": ["finance"]}}
    with node.oidc_provider(f"{story.url}/sign-in/acme/callback", people) as issuer:
        provider = {"name": "acme", "title": "Acme", "client_id": "countersign", "client_secret": "a-secret",
                    "issuer": issuer}  # fmt: skip
        story.more["PROVIDERS"] = json.dumps([provider])
        story.begin()
        story.patiently(lambda: _through_the_door(story))
        story.as_person(lambda person: _send(person, "/", lambda form: form.action.endswith("/sign-out"), {}))
        story.finish()
    with story.reading() as conn:
        found = conn.execute(select(*table(SessionRow).columns)).all()
    assert {row.assurance for row in found} == {"dev", "oidc"}
    assert any(row.revoked_at is not None for row in found if row.assurance == "dev")


def _through_the_door(story: Story) -> None:
    with closing(Browser(story.url)) as browser:
        back = browser.sign_in_there(browser.to_the_provider("acme"), login="maya", password="x")
        answer = browser.get(back)
        assert answer.status_code == 200, answer.text


def _send(person: Person, page: str, which: Callable[[Form], object], fields: dict[str, str]) -> None:
    """Send the first such form of a page."""
    forms = _Forms()
    forms.feed(person._get(page).text)
    person._send(next(form for form in forms.found if which(form)), fields)


def stops(story: Story) -> None:
    """A person stops a tool from its page; an operator starts it again, and what had waited goes on."""
    story.begin()
    said = story.live("large", "stopped")
    given = {"name": "refund", "reason": "it goes out twice"}
    stop = partial(_send, which=lambda form: form.fields.get("what") == "tool", fields=given)
    story.as_person(lambda person: stop(person, "/stop"))
    story.operator("go-on", {"tool": "refund"})
    story.answer_review(said, "maya")
    story.live("resume")
    finished(story, refund=1)


def brings_a_key(story: Story) -> None:
    """An agent shows its platform's token and brings a key."""
    with node.token_factory() as factory:
        agents = [{"agent": AGENT, "claims": {"sub": "pod"}}]
        trust = {"name": "cluster", "issuer": factory.issuer, "agents": agents}
        story.more["TRUSTED_ISSUERS"] = json.dumps([trust])
        story.begin()
        now = int(time.time())
        token = factory.sign({"sub": "pod", "aud": story.url, "iat": now, "nbf": now, "exp": now + 600})
        key = PrivateKey.generate()
        answer = story.patiently(lambda: _bring(story, token, key))
        assert answer.status_code == 201, answer.text
        story.finish()


def _bring(story: Story, token: str, key: PrivateKey) -> httpx2.Response:
    body = json.dumps({"token": token, "x": key.public.jwk()["x"]}).encode()
    nonce, answer = "none", httpx2.Response(500)
    with httpx2.Client(base_url=story.url, timeout=20) as http:
        for _ in range(2):
            proof = make_proof(key, agent=AGENT, method="POST", url_path="/v1/agent-keys", query="", body=body,
                               nonce=nonce, now=int(time.time()))  # fmt: skip
            headers = {"Agent-Proof": proof, "Content-Type": "application/json"}
            answer = http.post("/v1/agent-keys", content=body, headers=headers)
            nonce = answer.headers.get("agent-nonce", nonce)
    return answer


# ------------------------------------------------------------------------------------------------------- receivers


HOOK = "billing"


@contextmanager
def receiver_of(story: Story, *plan: Step) -> Iterator[Receiver]:
    """A webhook receiver that answers by this plan before it accepts everything."""
    secret = story.folder / "hook.secret"
    make_webhook_key(secret, own=False)
    with Receiver(plan=[*plan, 204]) as receiver:
        hook = {"name": HOOK, "url": receiver.url, "secret_files": [str(secret)]}
        story.more["WEBHOOKS"] = json.dumps([hook | {"addresses": ["127.0.0.0/8"]}])
        yield receiver


def knows_receiver(conn: Connection) -> bool:
    """Whether every line is sent to the receiver from now on."""
    return bool(conn.execute(select(table(WebhookRow).c.upto)).all())


def sends_webhooks(story: Story) -> None:
    """A receiver that fails at first gets every line at least once, and each under one id."""
    with receiver_of(story, 500) as receiver:
        story.begin()
        story.until("the receiver is known", knows_receiver)
        story.live("large", "large")
        story.answer("maya", pending(story))
        story.live("resume")
        story.finish()
        sent = [(got.event["data"]["index"], got.event["type"], got.id) for got in receiver.got]
    assert "effect_fired" in {kind for _, kind, _ in sent}
    assert len({index for index, _, _ in sent}) == len({named for *_, named in sent}) == len(set(sent))
    audit, families = table(AuditRow).c, Webhook.model_fields["kinds"].default
    with story.reading() as conn:
        since = audit.idx >= min(index for index, _, _ in sent)
        lines = conn.execute(select(audit.idx, audit.kind).where(since)).all()
    wanted = {(index, kind) for index, kind in lines if kind.partition("_")[0] in families}
    assert {(index, kind) for index, kind, _ in sent} == wanted


def sets_up(story: Story) -> None:
    """From nothing: keys, tables, an agent with a key of its own; then the signing key is changed."""
    assert story.command("init") == 0
    key = story.folder / "second.pem"
    if story.command("agent", "enroll", "second", "--key-out", str(key)) != 0:
        # as the refusal says: a key is never overwritten, and no agent was enrolled
        key.unlink(missing_ok=True)
        story.command("agent", "key", "add", "second", "--key-out", str(key))
        story.command("agent", "enroll", "third", "--key-out", str(key.with_name("third.pem")))
    story.enroll()
    story.serve()
    story.live("small", "small")
    story.stop()
    for more in (["--compromised"], []):
        before = time.time() - MIN_PUBLISHED_S - 1
        os.utime(story.data / "keys" / NEXT, (before, before))  # as if it had been published long enough
        if story.command("rotate-keys", *more) != 0:
            assert story.died  # in the middle of a rotation; the repeat finds no next key
        assert story.command("init") == 0
    if story.command("webhooks", "secret", str(story.folder / "hook.secret")) != 0:
        assert story.died  # the repeat finds the file, whole: a secret is never overwritten
    (secret,) = read_webhook_keys(HOOK, [story.folder / "hook.secret"])
    assert secret.public is None
    story.serve()
    story.live("two", "two")
    finished(story, refund=2, invoice=1)


def pending(story: Story) -> str:
    """The page of a review that waits."""
    with story.reading() as conn:
        return f"{story.url}/reviews/{open_reviews(conn)[0]}"
