"""The rule of design section 4, as one table: what guards and gates say together.

guards (permits, plain forbids) | gates fired | outcome
any error in either             |             | policy_error: a deny, and an alarm
deny                            | any         | deny: a gate never turns a plain forbid into a question
allow                           | none        | release
allow                           | some        | review: every gate that fired must be met
"""

from __future__ import annotations

from dataclasses import dataclass

from cedarpy import Entities

from countersign.contract import Verdict
from policy_service.pdp.cedar import Answer, Request, ask
from policy_service.pdp.rules import ToolRules


@dataclass(frozen=True, slots=True)
class Outcome:
    """The verdict, and which policies determined it."""

    verdict: Verdict
    determining: frozenset[str]
    fired: frozenset[str] = frozenset()
    errors: tuple[str, ...] = ()


def outcome_of(guards: Answer, fired: frozenset[str]) -> Outcome:
    """Put together what the guards say and which gates fired."""
    if guards.errors:
        return Outcome(Verdict.DENY, frozenset(), errors=guards.errors)
    if not guards.allowed:
        return Outcome(Verdict.DENY, guards.reasons)
    if not fired:
        return Outcome(Verdict.RELEASE, guards.reasons)
    return Outcome(Verdict.REVIEW, guards.reasons | fired, fired=fired)


def ask_rules(tool: ToolRules, request: Request, entities: Entities) -> Outcome:
    """Ask guards and gates, in one engine call where one tells both apart.

    Asked together they name every forbid that is satisfied, gates and plain ones, and every error. Only the
    permits stay hidden when a gate fires, and then the guards are asked again by themselves.
    """
    together = ask(tool.everything, request, entities, tool.schema)
    fired = together.reasons & tool.gates
    if together.errors or not fired:
        return outcome_of(together, frozenset())
    return outcome_of(ask(tool.guards, request, entities, tool.schema), fired)
