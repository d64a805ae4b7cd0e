"""What people watch and stop, as the pages' port: translation and nothing else."""

from __future__ import annotations

from collections.abc import AsyncIterator

from policy_service.channels.web.ports import Person
from policy_service.channels.web.source import voter_of
from policy_service.workflow.context import Context
from policy_service.workflow.oversight import stopping
from policy_service.workflow.oversight.stopping import StopPage, Target
from policy_service.workflow.pages import agents as agent_pages
from policy_service.workflow.pages import alarms, searching
from policy_service.workflow.pages.agents import AgentList, AgentPage
from policy_service.workflow.pages.alarms import Alarms
from policy_service.workflow.pages.searching import Found, LogLine, LogSearch

_EVERYTHING = Target("everything")


class WorkflowOversight:
    """Agents, the log and the emergency stop, as the workflow has them."""

    def __init__(self, ctx: Context) -> None:
        self._ctx = ctx

    async def alarms(self) -> Alarms:
        """What every page says aloud."""
        return await alarms.alarms(self._ctx)

    async def stop_page(self, person: Person) -> StopPage:
        """What can be stopped, and what this person may."""
        return await stopping.stop_page(self._ctx, voter_of(person), _EVERYTHING)

    async def stop(self, person: Person, target: Target, reason: str) -> None:
        """Stop it."""
        await stopping.stop(self._ctx, voter_of(person), target, reason)

    async def start_again(self, person: Person, target: Target, reason: str) -> None:
        """End a stop."""
        await stopping.start_again(self._ctx, voter_of(person), target, reason)

    async def agent_list(self, cursor: str | None, limit: int) -> AgentList:
        """Agents by name."""
        return await agent_pages.agent_list(self._ctx, cursor, limit)

    async def agent_page(self, name: str, person: Person) -> tuple[AgentPage, StopPage] | None:
        """One agent, and whether this person may stop it."""
        page = await agent_pages.agent_page(self._ctx, name)
        if page is None:
            return None
        return page, await stopping.stop_page(self._ctx, voter_of(person), Target("agent", name))

    async def search(self, wanted: LogSearch, cursor: str | None, limit: int) -> Found:
        """Lines of the log."""
        return await searching.search(self._ctx, wanted, cursor, limit)

    def export(self, wanted: LogSearch) -> AsyncIterator[LogLine]:
        """Every line that fits."""
        return searching.export(self._ctx, wanted)
