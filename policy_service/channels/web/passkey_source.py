"""The workflow's passkeys as the pages' port: translation and nothing else."""

from __future__ import annotations

from collections.abc import Sequence

from policy_service.channels.web.ports import BallotForm, NewSession, Session
from policy_service.channels.web.source import live_session
from policy_service.identity.passkeys import dismiss
from policy_service.workflow.context import Context
from policy_service.workflow.effects.ballots import person_key
from policy_service.workflow.passkeys import managing as passkeys
from policy_service.workflow.passkeys import stepping_up
from policy_service.workflow.passkeys.managing import Ceremony, PasskeyPage, Renewed
from policy_service.workflow.passkeys.stepping_up import Proof

_SIGN = (
    "Your passkey signs exactly this vote: these bytes, this page as you read it, your answer and your name."
)


class WorkflowPasskeys:
    """The passkeys of whoever is signed in."""

    def __init__(self, ctx: Context) -> None:
        self._ctx = ctx

    async def page(self, session: Session) -> PasskeyPage:
        """What this person has."""
        return await passkeys.page(self._ctx, live_session(session))

    def fresh_ways(self) -> Sequence[tuple[str, str]]:
        """The providers that say when they made sure of somebody."""
        return [
            (provider.name, provider.title)
            for provider in self._ctx.settings.providers
            if provider.kind != "github"
        ]

    async def begin_adding(self, session: Session, name: str) -> Ceremony:
        """Begin to add one."""
        return await passkeys.begin_adding(self._ctx, live_session(session), name)

    async def begin_removing(self, session: Session, passkey_id: str) -> Ceremony | None:
        """Begin to remove one."""
        return await passkeys.begin_removing(self._ctx, live_session(session), passkey_id)

    async def answer(self, session: Session, nonce: str, credential: str) -> Ceremony | NewSession | None:
        """Take an authenticator's answer."""
        done = await passkeys.finish(self._ctx, live_session(session), nonce, credential)
        if isinstance(done, Renewed):
            return NewSession(done.cookie, self._ctx.settings.session_max_s)
        return done

    async def dismiss(self, session: Session) -> None:
        """This session has read what changed."""
        await self._ctx.db.write(lambda tx: dismiss(tx, live_session(session)))

    async def ask_step_up(self, session: Session, review_id: str, ballot: BallotForm) -> Ceremony:
        """Ask for a passkey's word on this vote."""
        live = live_session(session)
        signed = {
            "review": review_id,
            "rev": ballot.rev,
            "txn_digest": ballot.txn_digest,
            "effect_digest": ballot.effect_digest,
            "view_digest": ballot.shown.digest,
            "person": person_key(live.person.iss, live.person.sub),
            "verdict": ballot.verdict,
        }
        asked = await stepping_up.ask(self._ctx, live, signed)
        return Ceremony("get", asked.nonce, asked.options, "Confirm with your passkey", _SIGN)

    def proof(self, session: Session, ballot: BallotForm) -> Proof | None:
        """What came with a vote."""
        if not ballot.nonce and not ballot.credential:
            return None
        return Proof(ballot.nonce, ballot.credential, live_session(session).key)
