"""Tab, filters and order of the queue, as its address names them: read strictly, written back for every link.

The address is the whole state: a bookmark is a saved filter. A name that is no filter, one that comes twice, and a
value that can match nothing are refused, so that nobody takes a list for narrower, or wider, than it is.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any, cast
from urllib.parse import urlencode

from starlette.datastructures import QueryParams

from policy_service.errors import InvalidRequestError
from policy_service.queries.queue import Order, QueuePage, Tab, Wanted

_MAX_CHARS = 200
# where in the list and in the log, and what stands beside it
_BESIDE = frozenset({"cursor", "review", "since"})
_NAMES = {"agent": "Agent", "tool": "Tool", "group": "Asks", "risk": "Risk", "text": "Says"}
_RISKS = ("low", "medium", "high")
_ORDERS = ("due", "newest")
_TITLES = {Tab.ME: "Needs me", Tab.OPEN: "All open", Tab.MINE: "Mine", Tab.DECIDED: "Decided"}
_KNOWN = frozenset(field.name for field in fields(Wanted))


@dataclass(frozen=True, slots=True)
class TabView:
    """A tab as a link with its count."""

    title: str
    href: str
    count: str
    zero: bool
    current: bool


@dataclass(frozen=True, slots=True)
class Chip:
    """A filter that is on, and the address without it."""

    name: str
    value: str
    href: str


def read_wanted(params: QueryParams) -> Wanted:
    """What an address asks for.

    Raises:
        InvalidRequestError: it asks for nothing the queue can show.
    """
    given = params.multi_items()
    names = [name for name, _ in given]
    if odd := [name for name in names if name not in _KNOWN | _BESIDE]:
        raise InvalidRequestError(
            f"the queue has no filter {odd[0]!r}: there are {', '.join(sorted(_KNOWN))}"
        )
    if twice := [name for name in names if names.count(name) > 1]:
        raise InvalidRequestError(f"the address names {twice[0]!r} twice: name it once")
    values: dict[str, Any] = {
        name: value.strip() for name, value in given if name in _KNOWN and value.strip()
    }
    if long := [name for name, value in values.items() if len(value) > _MAX_CHARS]:
        raise InvalidRequestError(f"the filter {long[0]!r} holds {_MAX_CHARS} characters at most")
    _one_of("tab", values, tuple(Tab))
    _one_of("risk", values, _RISKS)
    _one_of("order", values, _ORDERS)
    return _servable(Wanted(**values | {"tab": Tab(values.get("tab", Tab.ME))}))


def _one_of(name: str, values: dict[str, Any], known: tuple[str, ...]) -> None:
    if name in values and values[name] not in known:
        raise InvalidRequestError(f"there is no {name} {values[name]!r}: there are {', '.join(known)}")


def _servable(wanted: Wanted) -> Wanted:
    """Whom a settled review had asked is not kept by group, and the sentences of all that ever was are not searched."""
    if wanted.tab is Tab.DECIDED and (wanted.group or wanted.text):
        name = "group" if wanted.group else "text"
        raise InvalidRequestError(f"decided reviews are not filtered by {name}: use agent, tool or risk")
    return wanted


def address(wanted: Wanted, **beside: str | None) -> str:
    """The queue's address for this."""
    said = {field.name: str(getattr(wanted, field.name)) for field in fields(Wanted)}
    usual = {field.name: field.default for field in fields(Wanted)}
    named = {name: value for name, value in said.items() if value != usual[name]}
    named |= {name: value for name, value in beside.items() if value}
    return "/?" + urlencode(named) if named else "/"


def tabs(wanted: Wanted, page: QueuePage) -> tuple[TabView, ...]:
    """The four tabs; filters stay where the other tab can serve them."""
    counts = {Tab.ME: page.counts.me, Tab.OPEN: page.counts.open, Tab.MINE: page.counts.mine}
    counts[Tab.DECIDED] = page.counts.decided
    return tuple(
        TabView(title, _on_tab(wanted, tab), counts[tab].words, not counts[tab].number, tab is wanted.tab)
        for tab, title in _TITLES.items()
    )


def _on_tab(wanted: Wanted, tab: Tab) -> str:
    if tab is Tab.DECIDED:
        return address(replace(wanted, tab=tab, group="", text="", order="due"))
    return address(replace(wanted, tab=tab))


def chips(wanted: Wanted) -> tuple[Chip, ...]:
    """The filters that are on."""
    said = {name: str(getattr(wanted, name)) for name in _NAMES}
    return tuple(
        Chip(_NAMES[name], value, address(replace(wanted, **cast(Any, {name: ""}))))
        for name, value in said.items()
        if value
    )


def other_order(wanted: Wanted) -> tuple[str, str]:
    """The order it is in, in words, and the address of the other."""
    if wanted.tab is Tab.DECIDED:
        return "Decided last", ""
    other: Order = "due" if wanted.order == "newest" else "newest"
    return "Newest first" if wanted.order == "newest" else "Expires first", address(
        replace(wanted, order=other)
    )


def cleared(wanted: Wanted) -> str:
    """The same tab and order without a filter."""
    return address(Wanted(tab=wanted.tab, order=wanted.order))
