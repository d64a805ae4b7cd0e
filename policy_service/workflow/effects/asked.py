"""How much an agent may have people asked at once: people's attention is what an agent in a loop uses up first.

Counted in the database, in the unit of work that would ask, by one such unit of an agent at a time: so it is exact on
any number of replicas. Questions that new policies ask again count, and are never refused: they are not the agent's.
"""

from __future__ import annotations

from sqlalchemy import func, literal_column, select
from sqlmodel import col

from countersign.contract import ErrorCode
from policy_service.errors import QuotaError
from policy_service.settings import Settings
from policy_service.storage.alone import ask_alone
from policy_service.storage.core import table
from policy_service.storage.database import Tx
from policy_service.storage.tables import ReviewRow

_RETRY_S = 60  # people answer in minutes, if not in hours
# The state is written out, for a partial index serves no parameter.
_OPEN = select(func.count()).select_from(table(ReviewRow)).where(literal_column("reviews.state = 'open'"))


def require_room(tx: Tx, settings: Settings, agent: str) -> None:
    """Refuse what has just been asked when it is more than the agent may have open; the whole unit is then undone.

    Raises:
        QuotaError: too_many_open.
    """
    most = settings.open_reviews_per_agent
    ask_alone(tx, agent)
    asked = tx.conn.execute(_OPEN.where(col(ReviewRow.agent) == agent)).scalar_one()
    if asked <= most:
        return
    raise QuotaError(
        f"{agent!r} may have {most} questions before people at once, and this would make it {asked}; nothing of it was "
        "taken. Withdraw some, or wait until people have answered",
        code=ErrorCode.TOO_MANY_OPEN,
        setting="open_reviews_per_agent",
        limit=most,
        retry_after_seconds=_RETRY_S,
    )
