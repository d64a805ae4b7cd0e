"""What requests must leave in the database: a decision each, and an audit row for every transition."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

from sqlalchemy import NullPool, create_engine, text

from tests.bench.measuring import BenchError

SPENT = tuple(
    "transaction_submitted effect_submitted decision_made release_minted effect_redeemed transaction_redeemed".split()
)
DECISIONS = "decisions"

Count = Callable[[], Counter[str]]


def counting(url: str) -> Count:
    """How to count the decisions and the audit rows of each kind."""
    engine = create_engine(url, poolclass=NullPool)

    def count() -> Counter[str]:
        with engine.connect() as conn:
            kinds = conn.execute(text("SELECT kind, count(*) FROM audit GROUP BY kind")).all()
            decisions: int = conn.execute(text("SELECT count(*) FROM decisions")).scalar_one()
        return Counter(dict(kinds) | {DECISIONS: decisions})

    return count


def require_kept(before: Counter[str], after: Counter[str], kinds: Sequence[str], requests: int) -> None:
    """Require a row of each for every request.

    Raises:
        BenchError: one is missing.
    """
    for kind in (DECISIONS, *kinds):
        if after[kind] - before[kind] < requests:
            raise BenchError(f"{requests} requests left {after[kind] - before[kind]} rows of {kind}")
