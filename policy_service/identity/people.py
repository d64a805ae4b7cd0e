"""People: known by issuer and subject. Names and addresses are for reading, never for deciding.

Slack accounts that are a person's, and the invitations that make them so: the rows, for whoever ends them.

Rules kept here: a link that came back with a restored database is none, for it may have been ended since; what a
provider says of a person's sessions holds for their links too, until they sign in again.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, delete, select, update
from sqlmodel import col

from policy_service.storage.core import find, find_one, insert_or_ignore, rows_of, table
from policy_service.storage.database import Tx
from policy_service.storage.slack_tables import SlackInvitationRow, SlackLinkRow
from policy_service.storage.tables import PersonRow


@dataclass(frozen=True, slots=True)
class Person:
    """Somebody who is signed in. ``groups`` are those their token carried and that are still fresh enough."""

    iss: str
    sub: str
    name: str
    assurance: str
    groups: frozenset[str] = frozenset()
    groups_problem: str | None = None  # why their token carried fewer than their provider has, or none

    @property
    def key(self) -> str:
        """``iss|sub``: the one spelling of a person in policies and counts."""
        return f"{self.iss}|{self.sub}"


def record_sign_in(
    tx: Tx,
    iss: str,
    sub: str,
    name: str,
    *,
    email: str | None = None,
    groups: Iterable[str] | None = None,
    groups_problem: str | None = None,
) -> None:
    """Note a sign-in: the newest name and address, and the groups of the token with their age; none, where its
    provider's tokens carry none, whatever earlier ones carried. ``groups_problem``: why some are missing."""
    columns: dict[str, Any] = {"name": name, "email": email, "last_seen_at": tx.now}
    columns |= {"groups": sorted(groups or ()), "groups_at": None if groups is None else tx.now}
    columns["groups_problem"] = groups_problem
    row = {"iss": iss, "sub": sub, "first_seen_at": tx.now, **columns}
    if tx.conn.execute(insert_or_ignore(tx.conn, table(PersonRow)).values(row)).rowcount == 0:
        where = (col(PersonRow.iss) == iss, col(PersonRow.sub) == sub)
        tx.conn.execute(update(PersonRow).where(*where).values(columns))


def ensure_person(tx: Tx, iss: str, sub: str) -> None:
    """A row for somebody who never signed in, so that something can be noted of them. Nothing where there is one, also
    of a sign-in that is being committed: it is waited for.
    """
    row = {"iss": iss, "sub": sub, "name": sub, "groups": [], "first_seen_at": tx.now, "last_seen_at": tx.now}
    tx.conn.execute(insert_or_ignore(tx.conn, table(PersonRow)).values(row))


def is_known(conn: Connection, iss: str, sub: str) -> bool:
    """Whether there is anything of this person."""
    return find_one(conn, PersonRow, iss=iss, sub=sub) is not None


def find_person(
    conn: Connection, iss: str, sub: str, assurance: str, now: datetime, max_group_age_s: int
) -> Person | None:
    """A known person, unless revoked; groups older than the limit are left out, as if the token had carried none."""
    row = find_one(conn, PersonRow, iss=iss, sub=sub)
    if row is None or row.revoked_at is not None:
        return None
    fresh = row.groups_at is not None and (now - row.groups_at).total_seconds() < max_group_age_s
    groups = frozenset(row.groups if fresh else ())
    return Person(iss, sub, row.name, assurance, groups, row.groups_problem)


def is_revoked(conn: Connection, iss: str, sub: str) -> bool:
    """Whether an operator took this person out of every decision."""
    row = find_one(conn, PersonRow, iss=iss, sub=sub)
    return row is not None and row.revoked_at is not None


def names_of(conn: Connection, keys: Iterable[str]) -> dict[str, str]:
    """What people with these keys (``iss|sub``) called themselves at their last sign-in; unknown ones are left out."""
    found = {}
    for key in keys:
        iss, _, sub = key.partition("|")
        if (row := find_one(conn, PersonRow, iss=iss, sub=sub)) is not None:
            found[key] = row.name
    return found


def list_people(conn: Connection) -> list[PersonRow]:
    """Everybody who ever signed in or was barred from it, by issuer and subject."""
    return sorted(find(conn, PersonRow), key=lambda row: (row.iss, row.sub))


def list_revoked(conn: Connection) -> list[PersonRow]:
    """Those an operator took out of every decision; on any deployment they are few."""
    query = select(*table(PersonRow).columns).where(col(PersonRow.revoked_at).is_not(None))
    return rows_of(PersonRow, conn.execute(query))


def slack_link(conn: Connection, team_id: str, user_id: str) -> SlackLinkRow | None:
    """Whose an account is, or None."""
    return find_one(conn, SlackLinkRow, team_id=team_id, user_id=user_id)


def slack_links_of(conn: Connection, iss: str, sub: str) -> list[SlackLinkRow]:
    """The accounts of a person, oldest link first."""
    return _by_age(find(conn, SlackLinkRow, iss=iss, sub=sub))


def list_slack_links(conn: Connection) -> list[SlackLinkRow]:
    """Every account that is linked, oldest link first."""
    return _by_age(find(conn, SlackLinkRow))


def _by_age(rows: list[SlackLinkRow]) -> list[SlackLinkRow]:
    return sorted(rows, key=lambda row: (row.linked_at, row.team_id, row.user_id))


def suspend_slack_links(tx: Tx, iss: str, sub: str) -> None:
    """Nothing is decided through this person's accounts until they have signed in again."""
    theirs = (col(SlackLinkRow.iss) == iss, col(SlackLinkRow.sub) == sub)
    tx.conn.execute(update(SlackLinkRow).where(*theirs).values(signed_out_at=tx.now))


def delete_all_slack_links(tx: Tx) -> None:
    """No account is anybody's any more, and no invitation makes it so."""
    tx.conn.execute(delete(SlackLinkRow))
    tx.conn.execute(delete(SlackInvitationRow))


def delete_expired_invitations(tx: Tx, before: datetime) -> int:
    """Delete invitations that were over before that moment; how many."""
    over = col(SlackInvitationRow.expires_at) < before
    return tx.conn.execute(delete(SlackInvitationRow).where(over)).rowcount
