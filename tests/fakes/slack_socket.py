"""Socket Mode through the proxy: it ends both connections, and each envelope passes through `Deliveries`.

The server of the tests sends every envelope to every connection of an app; Slack sends it to one, and so does this.
"""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass, field
from typing import Any, Final

import aiohttp
from aiohttp import web

from tests.fakes.slack_deliveries import Answer, Deliveries, Json

_ACK_S: Final = 5.0  # as long as the server waits
_CONNECTS_S: Final = 30.0  # the client looks at a connection that was cut every five seconds


@dataclass
class Relay:
    """The Socket Mode connections of the service; envelopes go to the newest."""

    deliveries: Deliveries
    loop: asyncio.AbstractEventLoop
    open: list[web.WebSocketResponse] = field(default_factory=list)
    _acks: dict[str, asyncio.Future[Json]] = field(default_factory=dict)
    _taken: set[str] = field(default_factory=set)

    async def tell(self, envelope: Json) -> Answer:
        """Send an envelope, from any loop; answer its ack."""
        return await self._here(self._tell(envelope))

    async def cut(self) -> None:
        """Cut every connection without a word."""
        await self._here(self._cut())

    async def _here(self, work: Any) -> Any:
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self.loop))

    async def _tell(self, envelope: Json) -> Answer:
        acked = self.loop.create_future()
        self._acks[envelope["envelope_id"]] = acked
        try:
            await self.open[-1].send_json(envelope)
            ack: Json = await asyncio.wait_for(acked, _ACK_S)
        except (TimeoutError, IndexError, aiohttp.ClientError) as error:
            return Answer(0, repr(error).encode())
        finally:
            del self._acks[envelope["envelope_id"]]
        return Answer(200, json.dumps(ack["payload"]).encode() if ack.get("payload") else b"")

    async def until_open(self) -> None:
        """Wait until the service holds one connection that Slack knows of."""
        async with asyncio.timeout(_CONNECTS_S):
            while len(self.open) != 1:  # noqa: ASYNC110  the list is kept on another loop
                await asyncio.sleep(0.01)

    async def _cut(self) -> None:
        assert self.open, "the service holds no connection"
        for socket in self.open:
            if socket._req and socket._req.transport:
                socket._req.transport.abort()

    async def serve(self, request: web.Request, slack: str) -> web.WebSocketResponse:
        """One connection of the service, and the one to Slack that belongs to it."""
        service = web.WebSocketResponse()
        await service.prepare(request)
        async with aiohttp.ClientSession() as http, http.ws_connect(slack) as upstream:
            self.open.append(service)
            listening = asyncio.create_task(self._from_slack(upstream, service))
            try:
                async for frame in service:
                    if frame.type == aiohttp.WSMsgType.TEXT:
                        self._from_service(json.loads(frame.data))
            finally:
                self.open.remove(service)
                listening.cancel()
                await asyncio.gather(listening, return_exceptions=True)
        return service

    def _from_service(self, said: Json) -> None:
        acked = self._acks.get(said.get("envelope_id", ""))
        if acked and not acked.done():
            acked.set_result(said)

    async def _from_slack(self, upstream: Any, service: web.WebSocketResponse) -> None:
        async with asyncio.TaskGroup() as playing:  # a late one delays no other
            async for frame in upstream:
                said = json.loads(frame.data)
                if "envelope_id" not in said:
                    await service.send_json(said)
                elif said["envelope_id"] not in self._taken:
                    self._taken.add(said["envelope_id"])
                    playing.create_task(self._pass_on(upstream, said))

    async def _pass_on(self, upstream: aiohttp.ClientWebSocketResponse, said: Json) -> None:
        answer = await self.deliveries.by_socket(said["type"], said["payload"])
        if answer.status:
            ack = {"envelope_id": said["envelope_id"], **({"payload": answer.json} if answer.body else {})}
            await upstream.send_json(ack)
