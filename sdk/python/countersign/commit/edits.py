"""What this agent says to other arguments than it staged: a reviewer proposed them, the agent's side accepts or not.

Rules: nothing is accepted, and nothing other than what was staged is fired, unless the program said so: for every
change, or by a function that looks at each. Arguments that do not fit the tool's signature are never accepted. Whoever
is asked is asked once about each proposal while it waits, and about what is in force before that is fired; an answer of
no leaves a proposal open, for the agent's owner may still take it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from typing import Final, TypeAlias

from countersign.commit.plan import Plan
from countersign.contract.admission import JSON
from countersign.contract.canonical import canonicalize
from countersign.contract.codes import ErrorCode
from countersign.contract.wire import EffectView, ProposalView, TransactionView
from countersign.engine import Engine
from countersign.errors import Edited, NotStageable, ServiceRefused
from countersign.errors.reasons import Proposal

log: Final = logging.getLogger("countersign")

Judge: TypeAlias = "bool | Callable[[Proposal], bool]"
"""What `accept_edits` may be: no change, every change, or whatever a function says of each."""


class Edits:
    """One program's answers, while it commits or waits."""

    def __init__(self, engine: Engine, judge: Judge) -> None:
        self._engine = engine
        self._judge = judge
        self._answered: set[str] = set()
        self._agreed: set[tuple[str, bytes]] = set()  # effect and arguments

    def concerns(self, view: TransactionView) -> bool:
        """Whether there is a proposal this program has not been asked about."""
        return bool(self._judge) and any(True for _ in self._unanswered(view))

    async def answer(self, view: TransactionView) -> TransactionView:
        """Accept the first open proposal that the program takes; the transaction then, or as it was."""
        for one, proposed in list(self._unanswered(view)) if self._judge else ():
            self._answered.add(proposed.proposal_id)
            proposal = proposal_of(one, proposed)
            if not self._fits(proposal) or not self._agrees(proposal):
                continue
            try:
                return await self._engine.service.accept_proposal(proposed.proposal_id)
            except ServiceRefused as refused:
                if refused.problem_code != ErrorCode.PROPOSAL_CLOSED:
                    raise
                return await self._engine.service.view(view.txn)
        return view

    def require_agreed(self, staged: Plan, edited: Plan, view: TransactionView) -> None:
        """Refuse a list with other arguments than this program takes.

        Raises:
            Edited: naming each change.
            NotStageable: the program takes a change that the tool cannot: no answer of the program's mends that.
        """
        refused = []
        for mine, theirs, one in zip(staged.calls, edited.calls, view.effects, strict=True):
            raw = theirs.effect.args_bytes
            if raw == mine.effect.args_bytes or (one.effect_id, raw) in self._agreed:
                continue
            proposal = _in_force(one, mine.effect.args)
            if self._agrees(proposal):
                self._require_fitting(proposal)
            else:
                refused.append(proposal)
        if refused:
            raise Edited(staged.run_key, staged.txn, refused)

    def _unanswered(self, view: TransactionView) -> Iterator[tuple[EffectView, ProposalView]]:
        for one in view.effects:
            for proposed in () if one.review is None else one.review.proposals:
                if proposed.proposal_id not in self._answered:
                    yield one, proposed

    def _agrees(self, proposal: Proposal) -> bool:
        agreed = self._judge if isinstance(self._judge, bool) else self._judge(proposal) is True
        if agreed:
            self._agreed.add((proposal.effect_id, canonicalize(proposal.args)))
        return agreed

    def _fits(self, proposal: Proposal) -> bool:
        """Whether to ask about a proposal at all: what cannot fire is not worth a new question to people."""
        try:
            self._require_fitting(proposal)
        except NotStageable as error:
            log.warning("the change %s is not taken: %s", proposal.proposal_id, error)
            return False
        return True

    def _require_fitting(self, proposal: Proposal) -> None:
        """Refuse arguments the tool would not be called with exactly: what would reach it as something else is not
        what people signed (I-2)."""
        tool = self._engine.registry.get(proposal.tool)
        if tool is None:
            raise NotStageable(f"this program has no tool {proposal.tool!r}")
        tool.signature.require_fitting(canonicalize(proposal.args))


def open_proposals(view: TransactionView) -> Sequence[Proposal]:
    """The open proposals about a transaction, as programs read them."""
    return [
        proposal_of(one, proposed)
        for one in view.effects
        if one.review is not None
        for proposed in one.review.proposals
    ]


def edits_in_force(view: TransactionView) -> list[object]:
    """The changes that made the arguments in force, as the journal keeps them: proposed, by whom, accepted by whom."""
    return [edit.model_dump(mode="json", exclude_none=True) for one in view.effects for edit in one.edits]


def proposal_of(one: EffectView, proposed: ProposalView) -> Proposal:
    """An open proposal, against the arguments that stand."""
    return Proposal(
        proposal_id=proposed.proposal_id,
        tool=one.tool,
        effect_id=one.effect_id,
        args=dict(proposed.args),
        instead_of=dict(one.args),
        reason=proposed.reason,
        person=proposed.person,
        name=proposed.name,
    )


def _in_force(one: EffectView, staged: dict[str, JSON]) -> Proposal:
    """The arguments in force, against those that were staged; by whoever changed them last, as the service tells."""
    last = one.edits[-1] if one.edits else None
    return Proposal(
        proposal_id="" if last is None else last.proposal_id,
        tool=one.tool,
        effect_id=one.effect_id,
        args=dict(one.args),
        instead_of=staged,
        reason="no reason was told" if last is None else last.reason,
        person="" if last is None else last.person,
        name="somebody" if last is None else last.name,
        accepted_by="the agent's side" if last is None or last.decided_by is None else last.decided_by,
    )
