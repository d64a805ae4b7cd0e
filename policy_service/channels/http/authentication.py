"""Authenticate requests: the host they name, the size of their body, and the agent or person who sent them.

Every route calls :meth:`Authentication.agent` or :meth:`Authentication.person`. The route that enrols a key calls
:meth:`Authentication.newcomer` and :meth:`Authentication.require_key`.
"""

from __future__ import annotations

import hmac
from collections.abc import Awaitable, Callable

from fastapi import Request

from countersign.contract import ErrorCode, PublicKey
from policy_service.channels.requests import (
    declared_length,
    read_body,
    read_unidentified_body,
    require_json,
)
from policy_service.errors import ForbiddenError, UnauthenticatedError
from policy_service.identity.agents import Caller
from policy_service.identity.origin import parse_site, read_cookie, require_host, require_own_page
from policy_service.identity.proofs import PROOF_INSTRUCTIONS, Authenticator, RequestHead
from policy_service.identity.sessions import Session, Sessions
from policy_service.queries.context import Context

_WITH_BODY = frozenset({"POST", "PUT", "PATCH"})
_SMALL_BODY_BYTES = 16_384  # read before its sender is identified; few submissions are larger


class Authentication:
    """Identifies the caller of each request."""

    def __init__(self, ctx: Context, authenticator: Authenticator, sessions: Sessions) -> None:
        self._max_body_bytes = ctx.settings.max_body_bytes
        self._authenticator = authenticator
        self._sessions = sessions
        self._site = parse_site(ctx.settings.public_url)

    async def agent(self, request: Request) -> tuple[Caller, bytes]:
        """The agent or executor that sent a request, and the raw body its proof covers.

        Raises:
            ServiceError: misdirected_host, unsupported_media_type, too_large, or an authentication code.
        """
        head = self._request_head(request)
        if head.proof is None and head.authorization is None:
            raise UnauthenticatedError(PROOF_INSTRUCTIONS)
        body = await self._body(request, lambda: self._authenticator.check_head(head))
        return await self._authenticator.authenticate(head, body), body

    async def newcomer(self, request: Request, limit: int) -> tuple[RequestHead, bytes]:
        """A request signed with an unknown key, with a body of at most ``limit`` bytes. It proves nothing until
        :meth:`require_key` has verified it.

        Raises:
            ServiceError: misdirected_host, unsupported_media_type, too_large, unauthenticated.
        """
        head = self._request_head(request)
        if head.proof is None:
            raise UnauthenticatedError("sign this request into an Agent-Proof header with the key it brings")
        require_json(request)
        return head, await read_unidentified_body(request, min(limit, self._max_body_bytes))

    def require_key(self, head: RequestHead, body: bytes, key: PublicKey, agent: str) -> None:
        """Verify that the sender of a newcomer's request holds the private half of ``key``.

        Raises:
            ServiceError: an authentication code.
        """
        self._authenticator.authenticate_new_key(head, body, key, agent)

    async def person(self, request: Request, *, touch: bool = True) -> Session:
        """The signed-in person who sent a read-only request. ``touch``: the request counts as activity.

        Raises:
            ServiceError: misdirected_host, unauthenticated.
        """
        self.require_host(request)
        cookie = read_cookie(request.headers, self._site.session_cookie)
        session = None if cookie is None else await self._sessions.find(cookie, touch=touch)
        if session is None:
            raise UnauthenticatedError("sign in: this is for people, and you have no valid session")
        return session

    async def person_for_write(self, request: Request) -> tuple[Session, bytes]:
        """The signed-in person who sent a request that changes something, and its raw body.

        The session is looked up again after the body was read, because it may end meanwhile.

        Raises:
            ServiceError: as :meth:`person`, or csrf: another origin, or the session's form token is missing.
        """
        self.require_host(request)
        body = await self._body(request, lambda: self.person(request, touch=False))
        session = await self.person(request)
        require_own_page(self._site, request.headers)
        token = request.headers.get("x-csrf-token", "")
        if not hmac.compare_digest(token.encode("utf-8", "replace"), session.csrf.encode()):
            raise ForbiddenError("send this session's form token in X-CSRF-Token", code=ErrorCode.CSRF)
        return session, body

    async def still_there(self, request: Request, caller: Caller | None) -> bool:
        """Whether the sender of a streaming request is still authenticated: ``caller`` by key, None by session."""
        if caller is not None:
            return await self._authenticator.is_live(caller)
        cookie = read_cookie(request.headers, self._site.session_cookie)
        return cookie is not None and await self._sessions.find(cookie, touch=False) is not None

    def require_host(self, request: Request) -> None:
        """Refuse a request that names another host than the public one (DNS rebinding, a misconfigured proxy).

        Raises:
            InvalidRequestError: misdirected_host.
        """
        require_host(self._site, request.headers.get("host"))

    def _request_head(self, request: Request) -> RequestHead:
        self.require_host(request)
        return RequestHead(
            method=request.method,
            path=request.scope.get("raw_path", b"").decode("latin-1") or request.url.path,
            query=request.scope.get("query_string", b"").decode("latin-1"),
            proof=request.headers.get("agent-proof"),
            authorization=request.headers.get("authorization"),
        )

    async def _body(self, request: Request, identify: Callable[[], Awaitable[object]]) -> bytes:
        """Read the body. ``identify`` refuses an unknown sender by the headers alone, before a large body is read."""
        if request.method in _WITH_BODY:
            require_json(request)
        length = declared_length(request)
        if length is not None and length <= _SMALL_BODY_BYTES:
            return await read_unidentified_body(request, self._max_body_bytes)
        await identify()
        return await read_body(request, self._max_body_bytes)
