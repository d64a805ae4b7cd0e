"""Whether one commit descends from another: the fast-forward rule.

Rules kept here: parents are followed by name and nothing else; dates are their authors' word and shorten nothing.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from policy_service.pap.git.commits import commit_at
from policy_service.pap.git.objects import MissingObjectError, ObjectError, Objects

MAX_COMMITS: Final = 200_000


def descends(objects: Objects, head: str, accepted: str) -> bool:
    """Whether ``accepted`` is ``head`` or one of its ancestors; a history that ends early is not followed further.

    Raises:
        ObjectError: the history is damaged or longer than is followed.
    """
    seen, waiting = {head}, deque([head])
    while waiting:
        name = waiting.popleft()
        if name == accepted:
            return True
        try:
            parents = commit_at(objects, name).parents
        except MissingObjectError:
            if name == head:
                raise
            continue  # a shallow repository: what lies beyond is not known, and so not descended from
        waiting.extend(parent for parent in parents if parent not in seen)
        seen.update(parents)
        if len(seen) > MAX_COMMITS:
            raise ObjectError(f"{accepted} is not among the last {MAX_COMMITS} commits of {head}")
    return False
