"""Errors for requests that the policy service refused, or that did not reach it."""

from __future__ import annotations

from email.utils import parsedate_to_datetime
from typing import Any, Final

import httpx2

from countersign.errors import OverQuota, ServiceRefused, ServiceUnavailable
from countersign.http_clients import HttpResponse
from countersign.settings import TOKEN_VARIABLE, URL_VARIABLE

_NOTABLE_SKEW_SECONDS: Final = 5  # less is due to the network, and within the service's leeway
_MAX_DETAIL: Final = 2_000  # characters of a problem's text that reach an agent's context


def clock_skew(answer: HttpResponse, now: float) -> str | None:
    """Whether our clock is wrong, by the service's own."""
    try:
        service = parsedate_to_datetime(answer.headers.get("Date", "")).timestamp()
    except ValueError:
        return None
    off = round(now - service)
    if abs(off) < _NOTABLE_SKEW_SECONDS:
        return None
    return f"this machine's clock is {abs(off)} s {'ahead of' if off > 0 else 'behind'} the service's; set the clock"


def problem_error(call: str, status: int, members: dict[str, Any]) -> ServiceRefused | ServiceUnavailable:
    """The error for a response with these members of problem details."""
    code, detail = members.pop("code", None), members.pop("detail", None)
    if not isinstance(code, str) or status >= 500 or status < 400:
        said = detail if isinstance(detail, str) else "no problem details"
        if status < 500 and not isinstance(detail, str):
            said += f": {URL_VARIABLE} may name no policy service"
        return ServiceUnavailable(call, f"it answered {status} ({shortened(said)})")
    extras = {name: value for name, value in members.items() if name not in {"type", "title", "status"}}
    kind = OverQuota if status == 429 else ServiceRefused
    return kind(status, code, shortened(str(detail or members.get("title", ""))), extras)


def shortened(text: str) -> str:
    """A text of the service, as much of it as an agent reads."""
    return text if len(text) <= _MAX_DETAIL else f"{text[:_MAX_DETAIL]} ... ({len(text)} characters)"


def unreached_text(error: httpx2.TransportError, url: str) -> str:
    """Why the service at this address did not answer."""
    why = f"{type(error).__name__} {error}".strip()
    if not isinstance(error, httpx2.ConnectError):
        return why
    if "[SSL" in why:
        return f"{url} serves no https that this machine trusts ({why}); correct {URL_VARIABLE}"
    return (
        f"no service listens at {url} ({why}); start it (`policy-service serve`, or `policy-service dev my_agent.py`), "
        f"or correct {URL_VARIABLE}"
    )


def bad_proof_error(
    problem: ServiceRefused, *, signed: str, skew: str | None, by_token: bool
) -> ServiceRefused:
    """A refused proof, completed with the signing key, which the service does not reveal to strangers."""
    hint = skew or (
        f"{TOKEN_VARIABLE} names a token that must vouch for that agent: the service's log says why it did not"
        if by_token
        else "if `policy-service agent list` does not show that key for that agent, enrol it there "
        "(`policy-service agent key add`), or correct COUNTERSIGN_AGENT and COUNTERSIGN_KEY"
    )
    detail = f"{problem.detail}; the request was signed as {signed}; {hint}"
    return ServiceRefused(problem.status, problem.problem_code, detail, problem.extras)
