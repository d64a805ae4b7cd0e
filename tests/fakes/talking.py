"""One conversation with a scripted model, through the real client of a vendor, blocking or awaited.

The four are held to the same chapters: what a loop does must not depend on whose model it is.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import anthropic
import openai

from countersign import Runtime
from countersign.integrations import Conversation, run_anthropic, run_openai
from tests.fakes.model_vendors import (
    Vendor,
    anthropic_calls,
    anthropic_says,
    openai_calls,
    openai_says,
    vendor,
)

# Plain http on loopback: a TLS context without authorities costs nothing, those of the clients read every authority.
TRUST_NONE = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)

ALL = ("openai", "openai-async", "anthropic", "anthropic-async")
ASK = [{"role": "user", "content": "Refund order o-4, please."}]


@dataclass
class Talk:
    """Talks with the model of one vendor. `vendor` is the side of the model, for a look at what it was sent."""

    kind: str
    vendor: Vendor = field(default_factory=lambda: Vendor([]))
    runtime: Runtime | None = None
    """Whose agent talks, where a run names none."""

    @property
    def is_async(self) -> bool:
        return self.kind.endswith("-async")

    @property
    def is_openai(self) -> bool:
        return self.kind.startswith("openai")

    def calls(self, *calls: tuple[str, Any], said: str = "", turn: str = "") -> dict[str, Any]:
        return (openai_calls if self.is_openai else anthropic_calls)(*calls, said=said, turn=turn)

    def says(self, text: str) -> dict[str, Any]:
        return openai_says(text) if self.is_openai else anthropic_says(text)

    def run(
        self,
        script: Sequence[Any],
        tools: Sequence[Callable[..., Any]],
        *,
        key: str = "case-1",
        messages: Sequence[Any] = ASK,
        client: dict[str, Any] | None = None,
        **options: Any,
    ) -> Conversation:
        """Serve the script and talk until the end."""
        given = {"model": "example-small", "messages": list(messages), "tools": tools, "key": key}
        given |= {"runtime": self.runtime, **options}
        if not self.is_openai:
            given = {"max_tokens": 500, **given}
        with vendor(*script) as self.vendor:
            if self.is_async:
                return asyncio.run(self._awaited(given, client or {}))
            with self._client(client or {}) as blocking:
                return self._function(blocking, **given)

    def turn(
        self, calls: Sequence[tuple[str, Any]], tools: Sequence[Callable[..., Any]], **options: Any
    ) -> Conversation:
        """The model calls these in one message, and then has its last word."""
        return self.run([self.calls(*calls), self.says("Done.")], tools, **options)

    async def _awaited(self, given: dict[str, Any], settings: dict[str, Any]) -> Conversation:
        kind = openai.AsyncOpenAI if self.is_openai else anthropic.AsyncAnthropic
        async with kind(**self._settings(settings)) as client:
            return await self._function(client, **given)

    @contextmanager
    def _client(self, settings: dict[str, Any]) -> Iterator[Any]:
        kind = openai.OpenAI if self.is_openai else anthropic.Anthropic
        with kind(**self._settings(settings)) as client:
            yield client

    @property
    def _function(self) -> Callable[..., Any]:
        return run_openai if self.is_openai else run_anthropic

    def _settings(self, settings: dict[str, Any]) -> dict[str, Any]:
        url = f"{self.vendor.url}/v1" if self.is_openai else self.vendor.url
        package: Any = openai if self.is_openai else anthropic
        transport = package.DefaultAsyncHttpxClient if self.is_async else package.DefaultHttpxClient
        http = transport(verify=TRUST_NONE)
        return {"api_key": "none", "base_url": url, "max_retries": 0, "http_client": http, **settings}
