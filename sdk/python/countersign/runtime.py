"""The composition root of the SDK: settings, key, journal, tools and connections of one agent process.

Most programs never use it: the first transaction makes one from the environment. Tests and hosts with several agents
make their own and pass it, or install it with `use_runtime` (process_runtime.py). A commit works with an `Engine`.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, Self
from urllib.parse import urlsplit

import httpx2

from countersign.async_executor import AsyncExecutor
from countersign.clock import Clock, SystemClock
from countersign.concurrency import Executor, SyncExecutor
from countersign.contract.keys import PrivateKey
from countersign.errors import WorkerStopping
from countersign.http_clients import async_http_client, http_client
from countersign.journal import Journal
from countersign.llm.ledger import Ledger
from countersign.manifests.reviewed import Manifests
from countersign.service.api_clients import AsyncClient, Client
from countersign.service.client import Service
from countersign.service.enforcement import Enforcer, KeyCache
from countersign.service.ephemeral_keys import EphemeralKeys
from countersign.service.transport import Nonces, Transport
from countersign.settings import Settings, load_key
from countersign.tools.registry import ToolRegistry, default_registry


@dataclass(frozen=True, slots=True)
class Engine:
    """The parts for one transaction or one recovery."""

    settings: Settings
    registry: ToolRegistry
    journal: Journal
    manifests: Manifests
    enforcer: Enforcer
    service: Service
    executor: Executor
    clock: Clock
    ledger: Ledger
    host: Host
    stopping: Callable[[], bool] = lambda: False

    def require_not_stopping(self) -> None:
        """Called before a redemption and before every effect: a stopping worker begins nothing more.

        Raises:
            WorkerStopping: this process was asked to stop; the next one continues.
        """
        if self.stopping():
            raise WorkerStopping


class Host(Protocol):
    """What a transaction needs of its runtime."""

    @property
    def settings(self) -> Settings: ...

    @property
    def registry(self) -> ToolRegistry: ...

    @property
    def ledger(self) -> Ledger: ...

    def engine(self, executor: Executor) -> Engine: ...

    def sync_executor(self) -> SyncExecutor: ...

    def async_executor(self) -> AsyncExecutor: ...


def _own_key(settings: Settings, clock: Clock) -> tuple[PrivateKey, EphemeralKeys | None]:
    """The enrolled key, or a new one with its registration."""
    if settings.key_path is not None:
        return load_key(settings.key_path), None
    if settings.token_path is None:
        raise AssertionError("the settings hold a key or a token")
    key = PrivateKey.generate()
    return key, EphemeralKeys(settings.token_path, key, clock)


class Runtime:
    """One agent in one process.

    `transport` and `async_transport` replace the network (httpx2 transports: a mock, or an ASGI app in this
    process).

    Raises:
        SettingsError: the key file is missing or its mode is too open.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        registry: ToolRegistry | None = None,
        transport: httpx2.BaseTransport | None = None,
        async_transport: httpx2.AsyncBaseTransport | None = None,
        clock: Clock | None = None,
    ) -> None:
        self.settings = settings
        self.registry = default_registry if registry is None else registry
        self.clock: Clock = clock or SystemClock()
        self.journal = Journal(
            settings.journal_path,
            clock=self.clock,
            lease_seconds=settings.lease_seconds,
            key_path=settings.journal_key_path,
        )
        self.manifests = Manifests(self.journal)
        self.ledger = Ledger(settings, self.journal, self.clock)
        self._key, self._brought = _own_key(settings, self.clock)
        self._nonces = Nonces()
        self._keys = KeyCache(settings, self.clock)
        self._transport = transport
        self._async_transport = async_transport
        self._http: httpx2.Client | None = None
        self._pid = os.getpid()
        self._lock = threading.Lock()

    @classmethod
    def from_env(cls) -> Runtime:
        """A runtime with the settings of `Settings.from_env`."""
        return cls(Settings.from_env())

    def client(self) -> Client:
        """The service's API, blocking."""
        return Client(self._service(self.sync_executor()))

    def async_client(self) -> AsyncClient:
        """The service's API for async programs: `async with runtime.async_client() as client`."""
        executor = self.async_executor()
        return AsyncClient(self._wire(executor), executor, max_jwks_bytes=self.settings.max_jwks_bytes)

    def engine(self, executor: Executor, stopping: Callable[[], bool] = lambda: False) -> Engine:
        """The parts of one commit or recovery. `stopping` returns whether it must begin nothing more."""
        return Engine(
            settings=self.settings,
            registry=self.registry,
            journal=self.journal,
            manifests=self.manifests,
            enforcer=Enforcer(self.settings, self._key, self.journal, self.clock, self._keys),
            service=self._service(executor),
            executor=executor,
            clock=self.clock,
            ledger=self.ledger,
            host=self,
            stopping=stopping,
        )

    def sync_executor(self) -> SyncExecutor:
        return SyncExecutor(self._sync_http)

    def async_executor(self) -> AsyncExecutor:
        return AsyncExecutor(
            lambda: async_http_client(
                base_url=self._origin(),
                transport=self._async_transport,
                proxy=self.settings.https_proxy,
                ca_file=self.settings.ca_file,
            )
        )

    def close(self) -> None:
        """Close connections and the journal."""
        with self._lock:
            http, self._http = self._http, None
        if http is not None and self._pid == os.getpid():
            http.close()
        self.journal.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _service(self, executor: Executor) -> Service:
        return Service(self._wire(executor), max_jwks_bytes=self.settings.max_jwks_bytes)

    def _wire(self, executor: Executor) -> Transport:
        return Transport(self.settings, executor, self._key, self._nonces, self.clock, self._brought)

    def _sync_http(self) -> httpx2.Client:
        """One connection pool for the process; a forked child makes its own."""
        with self._lock:
            if self._http is None or self._pid != os.getpid():
                self._http = http_client(
                    base_url=self._origin(),
                    transport=self._transport,
                    proxy=self.settings.https_proxy,
                    ca_file=self.settings.ca_file,
                )
                self._pid = os.getpid()
            return self._http

    def _origin(self) -> str:
        parts = urlsplit(self.settings.url)
        return f"{parts.scheme}://{parts.netloc}"
