"""Who could sign: everybody known here, and whom of them a gate asks.

Known are the members of groups that can be read without them, and whoever has signed in. Permission is Cedar's, for the
way they may sign in here, at this hour; the requester's side is left to the caller.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

from policy_service.pap.bundle import Bundle
from policy_service.queries.ballots import groups_now, permission, person_key
from policy_service.queries.cases import Case
from policy_service.queries.context import Context
from policy_service.storage.tables import PersonRow


class People:
    """Everybody known here: found once for all gates that ask the same groups."""

    def __init__(self, bundle: Bundle, signed_in: Iterable[PersonRow]) -> None:
        self.bundle = bundle
        self._by_token = {person_key(row.iss, row.sub): row for row in signed_in}
        self._asked: dict[frozenset[str], list[tuple[str, frozenset[str]]]] = {}

    def of(self, asked: frozenset[str]) -> list[tuple[str, frozenset[str]]]:
        """Who is in one of these groups, each with the groups they are in now."""
        if asked not in self._asked:
            named = frozenset[str]().union(*(self.bundle.directory.members(group) for group in asked))
            known = ((person, self._groups(person)) for person in sorted(named | self._by_token.keys()))
            self._asked[asked] = [(person, groups) for person, groups in known if groups & asked]
        return self._asked[asked]

    def name_of(self, person: str) -> str | None:
        """What people call them: by the bundle, or as they signed in. None for somebody known by their key alone,
        which may be an address of theirs."""
        row = self._by_token.get(person)
        signed_in = None if row is None or row.name == row.sub or "@" in row.name else row.name
        return self.bundle.directory.name_of(person) or signed_in

    def _groups(self, person: str) -> frozenset[str]:
        row = self._by_token.get(person)
        if row is None:
            return groups_now(self.bundle, person)
        return frozenset() if row.revoked_at else groups_now(self.bundle, person, frozenset(row.groups))


def is_permitted(
    ctx: Context, bundle: Bundle, case: Case, person: str, groups: frozenset[str], now: datetime
) -> bool:
    """By whichever way they may sign in here; the hour they would vote at is taken to be now."""
    ways = (["dev"] if ctx.settings.dev_signin else []) + (["oidc"] if ctx.settings.providers else [])
    return any(
        permission(
            ctx, bundle, case.agent, case.review, case.gates,
            person=person, groups=groups, assurance=assurance, now=now,
        )
        for assurance in ways or ["oidc"]
    )  # fmt: skip
