"""The workflow's Slack accounts as the pages' port: translation and nothing else."""

from __future__ import annotations

from collections.abc import Sequence

from policy_service.channels.web.ports import NewSession, Session
from policy_service.channels.web.source import live_session
from policy_service.slack import SlackApp
from policy_service.workflow.context import Context
from policy_service.workflow.moves import person_actor
from policy_service.workflow.slack import inviting, linking
from policy_service.workflow.slack.inviting import Invitation
from policy_service.workflow.slack.linking import Link


class WorkflowSlackAccounts:
    """The Slack accounts of whoever is signed in."""

    command = inviting.COMMAND

    def __init__(self, ctx: Context, app: SlackApp) -> None:
        self._ctx = ctx
        self._app = app

    async def mine(self, session: Session) -> Sequence[Link]:
        """Those that are linked."""
        person = session.person
        return await linking.links_of(self._ctx, person.iss, person.sub)

    async def invitation(self, secret: str) -> Invitation | None:
        """What an invitation is for, while it may be used."""
        return await inviting.invitation_of(self._ctx, secret)

    async def link(self, session: Session, secret: str) -> NewSession:
        """Use it."""
        made = await linking.link(self._ctx, self._app, secret, live_session(session))
        return NewSession(made.cookie, self._ctx.settings.session_max_s)

    async def unlink(self, session: Session, team_id: str, user_id: str) -> bool:
        """Unlink one of one's own."""
        person = live_session(session).person
        actor = person_actor(person.iss, person.sub)
        return await linking.unlink(self._ctx, team_id, user_id, actor=actor, whose=person.key)

    async def set_direct(self, session: Session, team_id: str, user_id: str, wanted: bool) -> None:
        """Whether to be asked in direct messages too."""
        whose = live_session(session).person.key
        await linking.set_direct(self._ctx, team_id, user_id, wanted, whose=whose)
