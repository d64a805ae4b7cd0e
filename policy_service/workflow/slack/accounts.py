"""What Slack says of an account, and which kinds of account are asked nothing.

Only a full member of the app's own workspace is ever linked or heard: a guest is somebody else's employee, a bot is
nobody, and a channel shared with another company holds people whom this one's administrators cannot switch off. What
is read here decides who is refused, never who somebody is: names and addresses are their owner's to change.
"""

from __future__ import annotations

from dataclasses import dataclass

from countersign.contract import ErrorCode
from policy_service.errors import ForbiddenError
from policy_service.slack import SlackApp


@dataclass(frozen=True, slots=True)
class Account:
    """An account as the workspace describes it now."""

    team_id: str
    user_id: str
    name: str
    email: str | None  # None: Slack does not tell this app
    deleted: bool
    bot: bool
    guest: bool  # of one channel or of several
    stranger: bool  # seen through a shared channel


def nobody(team_id: str, user_id: str) -> Account:
    """An account that Slack was not asked about: enough to tell it why not, and never to let it act."""
    return Account(team_id, user_id, user_id, None, deleted=False, bot=False, guest=False, stranger=True)


def require_member(app: SlackApp, account: Account) -> None:
    """Refuse every account that is no full member's of this workspace.

    Raises:
        ForbiddenError: not_eligible.
    """
    if (why := _why_not(app, account)) is not None:
        raise ForbiddenError(why, code=ErrorCode.NOT_ELIGIBLE)


def _why_not(app: SlackApp, account: Account) -> str | None:
    if account.stranger or account.team_id != app.team_id:
        return (
            "this Slack account is of another workspace, which a shared channel does not change; sign in on the web "
            "if you are to decide here"
        )
    if account.deleted:
        return "this Slack account is deactivated, so it decides nothing"
    if account.bot:
        return "this Slack account is an app's; only people decide"
    if account.guest:
        return "this Slack account is a guest's, and guests decide nothing through Slack; use the web"
    return None
