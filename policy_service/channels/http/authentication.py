"""The door of the API: which host was meant, how large a body may be, who sent it.

Every route passes through :meth:`Gate.agent` or :meth:`Gate.person`; the one by which an agent brings a key passes
through :meth:`Gate.newcomer` and :meth:`Gate.require_key`.
"""

from __future__ import annotations

import hmac
from collections.abc import Awaitable, Callable

from fastapi import Request

from countersign.contract import ErrorCode, PublicKey
from policy_service.channels.http.bodies import require_json
from policy_service.channels.http.rate_limits import RateLimits
from policy_service.channels.requests import declared_length, read_body, read_unidentified_body
from policy_service.errors import ForbiddenError, UnauthenticatedError
from policy_service.identity.agents import Caller
from policy_service.identity.origin import parse_site, read_cookie, require_host, require_own_page
from policy_service.identity.proofs import PROOF_INSTRUCTIONS, Authenticator, RequestHead
from policy_service.identity.sessions import Session, Sessions
from policy_service.queries.context import Context

_WITH_BODY = frozenset({"POST", "PUT", "PATCH"})
_SMALL_BODY_BYTES = 16_384  # read before its sender is identified; few submissions are larger


class Authentication:
    """Who may come in, and as whom."""

    def __init__(self, ctx: Context, authenticator: Authenticator, sessions: Sessions) -> None:
        self.ctx = ctx
        self._authenticator = authenticator
        self._sessions = sessions
        self._site = parse_site(ctx.settings.public_url)
        self.rate_limits = RateLimits(ctx.settings)

    async def agent(self, request: Request) -> tuple[Caller, bytes]:
        """The agent or executor behind a request, and the raw body its proof covers.

        Raises:
            ServiceError: misdirected_host, unsupported_media_type, too_large, or an authentication code.
        """
        presented = self._presented(request)
        if presented.proof is None and presented.authorization is None:
            raise UnauthenticatedError(PROOF_INSTRUCTIONS)
        body = await self._body(request, lambda: self._authenticator.check_head(presented))
        return await self._authenticator.authenticate(presented, body), body

    async def newcomer(self, request: Request, limit: int) -> tuple[RequestHead, bytes]:
        """A request of somebody who is not known yet, with a body of ``limit`` bytes at most: what it says is to be
        proved by :meth:`require_key`.

        Raises:
            ServiceError: misdirected_host, unsupported_media_type, too_large, unauthenticated.
        """
        presented = self._presented(request)
        if presented.proof is None:
            raise UnauthenticatedError("sign this request into an Agent-Proof header with the key it brings")
        require_json(request)
        return presented, await read_unidentified_body(request, min(limit, self.ctx.settings.max_body_bytes))

    def require_key(self, presented: RequestHead, body: bytes, key: PublicKey, agent: str) -> None:
        """Make sure that a newcomer holds the key it brings.

        Raises:
            ServiceError: an authentication code.
        """
        self._authenticator.authenticate_new_key(presented, body, key, agent)

    async def person(self, request: Request, *, touch: bool = True) -> Session:
        """The signed-in person behind a request that changes nothing; ``touch``: it shows that they are there.

        Raises:
            ServiceError: misdirected_host, unauthenticated.
        """
        self.require_host(request)
        cookie = read_cookie(request.headers, self._site.session_cookie)
        session = None if cookie is None else await self._sessions.find(cookie, touch=touch)
        if session is None:
            raise UnauthenticatedError(
                "sign in: this is for people, and your session is over or was never begun"
            )
        return session

    async def person_for_write(self, request: Request) -> tuple[Session, bytes]:
        """The signed-in person behind a request that changes something.

        The session is looked up after the body has been read: it may end while the body is on its way.

        Raises:
            ServiceError: also csrf, when the origin is another or the session's form token is missing.
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
        """Whether whoever opened a stream may go on reading: the session is live, or the key still is."""
        if caller is not None:
            return await self._authenticator.is_live(caller)
        cookie = read_cookie(request.headers, self._site.session_cookie)
        return cookie is not None and await self._sessions.find(cookie, touch=False) is not None

    def require_host(self, request: Request) -> None:
        """Refuse a request that names another host than the public one (DNS rebinding, a stray proxy).

        Raises:
            InvalidRequestError: misdirected_host.
        """
        require_host(self._site, request.headers.get("host"))

    def _presented(self, request: Request) -> RequestHead:
        self.require_host(request)
        return RequestHead(
            method=request.method,
            path=request.scope.get("raw_path", b"").decode("latin-1") or request.url.path,
            query=request.scope.get("query_string", b"").decode("latin-1"),
            proof=request.headers.get("agent-proof"),
            authorization=request.headers.get("authorization"),
        )

    async def _body(self, request: Request, identify: Callable[[], Awaitable[object]]) -> bytes:
        """The body. ``identify`` refuses a sender by the head alone; it runs before a body that is not small."""
        if request.method in _WITH_BODY:
            require_json(request)
        limit = self.ctx.settings.max_body_bytes
        length = declared_length(request)
        if length is not None and length <= _SMALL_BODY_BYTES:
            return await read_unidentified_body(request, limit)
        await identify()
        return await read_body(request, limit)
