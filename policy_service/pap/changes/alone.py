"""One changed rule by itself: whether everything it can be asked shows that it lets no more through than before.

Rules kept here: one call shows one difference, so beside a rule that was shown to loosen, another one that changed is
believed to be stricter only when it was tried alone and in full; a rule that asks or permits otherwise is not.
"""

from __future__ import annotations

from typing import Any

from policy_service.pap.changes.reading import Read, read_policy
from policy_service.pap.changes.regions import Pair, all_answers
from policy_service.pap.changes.states import Half


def never_laxer(name: str, pair: Pair, bases: list[dict[str, Any]]) -> bool:
    """Whether a rule of both sides holds back all that it held back, or permits nothing more; False in doubt."""
    before, after = pair
    if before is None or after is None or name not in before.trees or name not in after.trees or not bases:
        return False
    old, new = before.bundle.policies[name], after.bundle.policies[name]
    if (old.effect, old.gate, old.unseen) != (new.effect, new.gate, new.unseen):
        return False
    read = Read()
    for side in (before, after):
        read.add(read_policy(side.trees[name]))
    for base in bases:
        answers = all_answers(name, pair, read, base)
        if answers is None or any(_is_laxer(old.effect, one, other) for one, other in answers):
            return False
    return True


def _is_laxer(effect: str, before: Half, after: Half) -> bool:
    if after.refused:
        return False
    if before.refused:
        return True
    if effect == "permit":
        return bool(after.permits) and not before.permits
    return bool(before.forbidden or before.gates) and not (after.forbidden or after.gates)
