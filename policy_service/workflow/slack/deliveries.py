"""What somebody did in Slack is acted on once, whichever way and however often it is delivered.

A delivery is known by what it says was done, by whom and when, so that it has one name over both ways. Names are kept
for a day: a signature holds for five minutes, and Slack delivers nothing again after an hour.
"""

from __future__ import annotations

import hashlib

from policy_service.queries.context import Context
from policy_service.storage.core import find_one, insert_unless_taken
from policy_service.storage.database import Tx
from policy_service.storage.slack_tables import SlackDeliveryRow


def delivery_of(*parts: str) -> str:
    """The name of one thing somebody did: a digest, since Slack's ids say more than we need to keep."""
    return hashlib.sha256("\n".join(parts).encode("utf-8", "replace")).hexdigest()


async def is_known(ctx: Context, delivery: str) -> bool:
    """Whether it was acted on."""
    return await ctx.db.read(lambda conn: find_one(conn, SlackDeliveryRow, delivery=delivery) is not None)


async def first_time(ctx: Context, delivery: str) -> bool:
    """Write down that it is acted on; whether it was not before. Of two at once, one is the first."""
    return await ctx.db.write(lambda tx: note_in(tx, delivery))


def note_in(tx: Tx, delivery: str) -> bool:
    """The same in a unit that is open."""
    return insert_unless_taken(tx.conn, SlackDeliveryRow(delivery=delivery, at=tx.now))
