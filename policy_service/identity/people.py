"""People, identified by issuer and subject; names and addresses are for display only. Also their Slack links.

A link restored with a database does not count, because it may have been removed since. If a provider ends a person's
sessions, their links are suspended until they sign in again.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, delete, select, update
from sqlmodel import col

from policy_service.storage.core import find, find_one, insert_row_or_ignore, rows_of, table, update_rows
from policy_service.storage.database import Tx
from policy_service.storage.slack_tables import SlackInvitationRow, SlackLinkRow
from policy_service.storage.tables import PersonRow


@dataclass(frozen=True, slots=True)
class Person:
    """A signed-in person. ``groups`` are those of their token, while they are fresh enough."""

    iss: str
    sub: str
    name: str
    assurance: str
    groups: frozenset[str] = frozenset()
    groups_problem: str | None = None  # why groups are missing from their token

    @property
    def key(self) -> str:
        """``iss|sub``: the id of a person in policies and counts."""
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
    """Store the name, address and groups of a sign-in, with the time of the groups.

    Groups are None if the provider's tokens carry none; earlier ones are then removed. ``groups_problem``: why some
    are missing.
    """
    columns: dict[str, Any] = {"name": name, "email": email, "last_seen_at": tx.now}
    columns |= {"groups": sorted(groups or ()), "groups_at": None if groups is None else tx.now}
    columns["groups_problem"] = groups_problem
    if not insert_row_or_ignore(tx.conn, PersonRow(iss=iss, sub=sub, first_seen_at=tx.now, **columns)):
        update_rows(tx.conn, PersonRow, {"iss": iss, "sub": sub}, columns)


def ensure_person(tx: Tx, iss: str, sub: str) -> None:
    """Insert a row for a person who never signed in. If one exists, or is being committed, it waits and changes
    nothing.
    """
    row = PersonRow(iss=iss, sub=sub, name=sub, first_seen_at=tx.now, last_seen_at=tx.now)
    insert_row_or_ignore(tx.conn, row)


def is_known(conn: Connection, iss: str, sub: str) -> bool:
    """Whether this person has a row."""
    return find_one(conn, PersonRow, iss=iss, sub=sub) is not None


def find_person(
    conn: Connection, iss: str, sub: str, assurance: str, now: datetime, max_group_age_s: int
) -> Person | None:
    """A known person, unless revoked. Groups older than the limit are left out."""
    row = find_one(conn, PersonRow, iss=iss, sub=sub)
    if row is None or row.revoked_at is not None:
        return None
    fresh = row.groups_at is not None and (now - row.groups_at).total_seconds() < max_group_age_s
    groups = frozenset(row.groups if fresh else ())
    return Person(iss, sub, row.name, assurance, groups, row.groups_problem)


def is_revoked(conn: Connection, iss: str, sub: str) -> bool:
    """Whether an operator revoked this person."""
    row = find_one(conn, PersonRow, iss=iss, sub=sub)
    return row is not None and row.revoked_at is not None


def names_of(conn: Connection, keys: Iterable[str]) -> dict[str, str]:
    """The names at their last sign-in of people with these keys (``iss|sub``); unknown ones are left out."""
    found = {}
    for key in keys:
        iss, _, sub = key.partition("|")
        if (row := find_one(conn, PersonRow, iss=iss, sub=sub)) is not None:
            found[key] = row.name
    return found


def list_people(conn: Connection) -> list[PersonRow]:
    """Everyone who signed in or was revoked, by issuer and subject."""
    return sorted(find(conn, PersonRow), key=lambda row: (row.iss, row.sub))


def list_revoked(conn: Connection) -> list[PersonRow]:
    """The revoked people; on any deployment they are few."""
    query = select(*table(PersonRow).columns).where(col(PersonRow.revoked_at).is_not(None))
    return rows_of(PersonRow, conn.execute(query))


def slack_link(conn: Connection, team_id: str, user_id: str) -> SlackLinkRow | None:
    """The link of a Slack account, or None."""
    return find_one(conn, SlackLinkRow, team_id=team_id, user_id=user_id)


def slack_links_of(conn: Connection, iss: str, sub: str) -> list[SlackLinkRow]:
    """The links of a person, oldest first."""
    return _by_age(find(conn, SlackLinkRow, iss=iss, sub=sub))


def list_slack_links(conn: Connection) -> list[SlackLinkRow]:
    """Every link, oldest first."""
    return _by_age(find(conn, SlackLinkRow))


def _by_age(rows: list[SlackLinkRow]) -> list[SlackLinkRow]:
    return sorted(rows, key=lambda row: (row.linked_at, row.team_id, row.user_id))


def suspend_slack_links(tx: Tx, iss: str, sub: str) -> None:
    """Suspend this person's links until they sign in again."""
    theirs = (col(SlackLinkRow.iss) == iss, col(SlackLinkRow.sub) == sub)
    tx.conn.execute(update(SlackLinkRow).where(*theirs).values(signed_out_at=tx.now))


def delete_all_slack_links(tx: Tx) -> None:
    """Delete all links and invitations."""
    tx.conn.execute(delete(SlackLinkRow))
    tx.conn.execute(delete(SlackInvitationRow))


def delete_expired_invitations(tx: Tx, before: datetime) -> int:
    """Delete invitations that expired before that time. Returns their number."""
    over = col(SlackInvitationRow.expires_at) < before
    return tx.conn.execute(delete(SlackInvitationRow).where(over)).rowcount
