"""Plain Cedar, without our annotations: the engine below a bundle, for policy sets that others wrote.

Policies keep the engine's positional ids (`policy0`, ...), as Cedar's own test corpus names them. The same
guard counts depth before parsing and the same table reads the answers, with no gates: allow releases, deny
denies, and any error denies.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from cedarpy import PolicySet, Schema

from policy_service.pap.problems import BundleError
from policy_service.pap.scan import scan
from policy_service.pdp.cedar import Request, ask, entities_of
from policy_service.pdp.outcome import Outcome, outcome_of


def load_plain(name: str, text: str) -> PolicySet:
    """A policy set as it is.

    Raises:
        BundleError: what the parser must not see.
        ValueError: what it does not take.
    """
    _, problems = scan(name, text)
    if problems:
        raise BundleError(problems)
    return PolicySet.from_str(text)


def decide_plain(
    policies: PolicySet, request: Request, entities: Sequence[Mapping[str, Any]], schema: Schema
) -> Outcome:
    """The outcome of one request.

    Raises:
        ValueError: the entities do not fit the schema.
    """
    return outcome_of(ask(policies, request, entities_of(entities, schema), schema), frozenset())
