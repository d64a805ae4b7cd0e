"""Validates the options of tool decorators and turns them into a draft manifest."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from difflib import get_close_matches
from typing import Any, Final, Literal, get_args

from countersign.adapters.protocol import LiveAdapter
from countersign.contract.errors import ContractError, PointerError
from countersign.contract.manifest import require_resource_type, require_tool_name
from countersign.contract.pointers import pointer_tokens
from countersign.errors import RegistrationError
from countersign.tools.signature import Signature

Lane = Literal["staged", "live"]
FailureMeans = Literal["unknown", "not_done"]

MAX_TRIES: Final = 20
_ADAPTER_VERBS: Final = ("begin", "landed", "recover")
_ENDS: Final = ("transaction", "tool")
_LANES: Final = get_args(Lane)
_MEANINGS: Final = get_args(FailureMeans)
_CALL_OPTIONS: Final = {"repeat": False, "failure_means": "unknown", "own_thread": True, "tries": None}
OPTIONS: Final = ("lane", "adapter", *_CALL_OPTIONS, "manifest", "registry")
"""The options of `@tool` besides the members of a draft."""

_STAGED_ONLY: Final = (
    *_CALL_OPTIONS,
    *("idempotent", "on_exhausted", "compensate", "compensation_map", "timeout_seconds"),
)
_RISKS: Final = ("low", "medium", "high")
_FROM_ARGS: Final = "args:"
_LIST_MEMBERS: Final = ("groups", "money", "recipients", "secret")


@dataclass(frozen=True, slots=True)
class Draft:
    """What the code suggests for the manifest; the reviewed manifest decides."""

    resource: tuple[str, str] | None = None
    title: str | None = None
    sentence: str | None = None
    idempotent: bool = False
    on_exhausted: str = "transaction"
    ask: str | None = None
    compensate: str | None = None
    compensation_map: Mapping[str, str] = field(default_factory=dict)
    probe: str | None = None
    groups: tuple[str, ...] = ()
    risk: str = "medium"
    money: tuple[Mapping[str, str], ...] = ()
    recipients: tuple[str, ...] = ()
    secret: tuple[str, ...] = ()
    timeout_seconds: int = 60


def require_valid_lane(name: str, lane: str, adapter: LiveAdapter | None, options: Mapping[str, Any]) -> None:
    """Check that lane, adapter and options are consistent: an option without effect in its lane is refused (W14).

    Raises:
        RegistrationError: they are not.
    """
    _require_one_of(name, "lane", lane, _LANES)
    try:
        require_tool_name(name)
    except ContractError as error:
        raise RegistrationError(str(error)) from error
    undoes = all(callable(getattr(adapter, one, None)) for one in _ADAPTER_VERBS)
    if adapter is not None and (not undoes or isinstance(adapter, type)):
        raise RegistrationError(
            f"tool {name!r} has adapter={adapter!r}, which cannot undo: it is not a LiveAdapter (`begin`, "
            "`landed`, `recover`); stage the tool, or use an adapter of countersign.adapters"
        )
    if lane == "live" and adapter is None:
        raise RegistrationError(
            f"tool {name!r}: a live tool needs the adapter that undoes it: write adapter=..., or groups=['read'] where "
            "it changes nothing"
        )
    if lane != "live" and adapter is not None:
        raise RegistrationError(
            f"tool {name!r} is staged and has an adapter, which only a live tool needs: write lane='live', or leave "
            "the adapter out"
        )
    if lane == "live" and options.get("probe") is not None:
        raise RegistrationError(
            f"tool {name!r} is live and says probe={options['probe']!r}; its adapter knows what landed, leave it out"
        )
    usual = {**_CALL_OPTIONS, **{one.name: one.default for one in fields(Draft)}, "compensation_map": {}}
    idle = [one for one in _STAGED_ONLY if one in options and options[one] != usual[one]]
    if lane == "live" and idle:
        raise RegistrationError(
            f"tool {name!r} is live and says {idle[0]}={options[idle[0]]!r}, which is for staged tools: a live one "
            "runs once, where it is called, and its adapter undoes it; leave it out"
        )
    ask = options.get("ask")
    if ask is not None and lane != "live":
        raise RegistrationError(
            f"tool {name!r} says ask={ask!r} and is staged: the policy is asked about it at the commit anyway; leave "
            "ask out"
        )


def require_valid_calls(name: str, calling: Mapping[str, Any]) -> None:
    """Check how often a tool may be called and what its failure means.

    Raises:
        RegistrationError: a value is invalid.
    """
    _require_one_of(name, "failure_means", calling["failure_means"], _MEANINGS)
    tries = calling["tries"]
    if tries is not None and not (type(tries) is int and 1 <= tries <= MAX_TRIES):
        raise RegistrationError(f"tool {name!r} says tries={tries!r}; write a number from 1 to {MAX_TRIES}")


def _require_one_of(name: str, what: str, value: object, known: tuple[str, ...]) -> None:
    if value not in known:
        raise RegistrationError(f"tool {name!r} says {what}={value!r}; write {' or '.join(map(repr, known))}")


def build_draft(name: str, given: dict[str, Any], signature: Signature) -> Draft:
    """The options as a draft of the manifest.

    Raises:
        RegistrationError: an option is unknown or invalid.
    """
    unknown = sorted(set(given) - set(Draft.__dataclass_fields__))
    if unknown:
        known = (*OPTIONS, *Draft.__dataclass_fields__)
        close = [match for one in unknown for match in get_close_matches(one, known, n=1)]
        called = "; the name comes first and bare: @tool(NAME, ...)" if "name" in unknown else ""
        meant = f"; did you mean {', '.join(close)}?" if close and not called else ""
        raise RegistrationError(
            f"@tool({name!r}) does not know {', '.join(unknown)}{called}{meant}; it takes {', '.join(known)}"
        )
    _require_shapes(name, given)
    alone = [key for key in _LIST_MEMBERS if isinstance(given.get(key), str)]
    if alone:
        raise RegistrationError(
            f"tool {name!r} says {alone[0]}={given[alone[0]]!r}, a text where there may be several; write "
            f"{alone[0]}=[{given[alone[0]]!r}]"
        )
    _require_one_of(name, "on_exhausted", given.get("on_exhausted", "transaction"), _ENDS)
    if given.get("ask") not in (None, "live"):
        raise RegistrationError(
            f"tool {name!r} says ask={given['ask']!r}; write ask='live', of a live tool about which the policy is "
            "asked before it runs"
        )
    if given.get("resource") is not None:
        require_resource(name, given["resource"], signature)
    _require_arguments(name, given, signature)
    options: dict[str, Any] = {
        key: tuple(value) if isinstance(value, list) else value for key, value in given.items()
    }
    return Draft(**options)


def _require_shapes(name: str, given: Mapping[str, Any]) -> None:
    """Check that each member has the type the manifest requires."""
    for key, (shape, holds) in _SHAPES.items():
        value = given.get(key)
        alone = key in _LIST_MEMBERS and isinstance(value, str)  # which has an error text of its own
        if key in given and not alone and not shape(value):
            raise RegistrationError(f"tool {name!r} says {key}={value!r}; write {holds}")


def _require_arguments(name: str, given: Mapping[str, Any], signature: Signature) -> None:
    """Check that every named argument exists: a misspelt secret would be stored in clear."""
    for key, value, names_it in _named_in(given):
        if first_argument(names_it) not in signature.names:
            takes = ", ".join(signature.parameters) or "no arguments"
            raise RegistrationError(
                f"tool {name!r} says {key}={value!r}, and {names_it!r} is no argument of it, nor a pointer into one; "
                f"{name} takes {takes}"
            )


def _named_in(given: Mapping[str, Any]) -> Iterator[tuple[str, Any, str]]:
    """Each argument that a member names: the member, its value, the name or pointer."""
    for key in ("secret", "recipients"):
        yield from ((key, given[key], one) for one in given.get(key, ()))
    for one in given.get("money", ()):
        yield from (
            ("money", given["money"], place) for place in one.values() if not place.startswith("const:")
        )
    mapped = given.get("compensation_map") or {}
    yield from (
        ("compensation_map", mapped, source.removeprefix(_FROM_ARGS))
        for source in mapped.values()
        if source.startswith(_FROM_ARGS)
    )


def _is_texts(value: Any) -> bool:
    return isinstance(value, list | tuple) and all(isinstance(one, str) for one in value)


def _is_map(value: Any) -> bool:
    return isinstance(value, Mapping) and _is_texts([*value, *value.values()])


def _is_maps(value: Any) -> bool:
    return isinstance(value, list | tuple) and all(_is_map(one) for one in value)


def _is_text(value: Any) -> bool:
    return value is None or isinstance(value, str)


_SHAPES: Final[Mapping[str, tuple[Callable[[Any], bool], str]]] = {
    "title": (_is_text, "a text"),
    "sentence": (_is_text, "a text, like 'Refund {amount_cents} to {customer}'"),
    "compensate": (_is_text, "a tool's name"),
    "probe": (_is_text, "a probe's name"),
    "risk": (lambda value: value in _RISKS, "'low', 'medium' or 'high'"),
    "idempotent": (lambda value: type(value) is bool, "True or False"),
    "timeout_seconds": (
        lambda value: type(value) is int and 1 <= value <= 3600,
        "whole seconds, 3600 at most",
    ),
    "groups": (_is_texts, 'a list of names, like ["read"]'),
    "recipients": (_is_texts, 'a list of arguments, like ["to"]'),
    "secret": (_is_texts, 'a list of arguments, like ["token"]'),
    "money": (_is_maps, 'a list like [{"amount": "amount_cents", "currency": "const:USD"}]'),
    "compensation_map": (_is_map, 'a map like {"charge_id": "result:/id"}'),
}


def require_resource(name: str, given: Any, signature: Signature) -> None:
    """Check a resource: a type and the source of its id, which is an argument, a pointer into one, or a constant.

    Raises:
        RegistrationError: it is not such a pair, names no argument, or has a type that no bundle accepts.
    """
    is_pair = (
        isinstance(given, tuple | list) and len(given) == 2 and all(isinstance(one, str) for one in given)
    )
    if is_pair and (given[1].startswith("const:") or first_argument(given[1]) in signature.names):
        try:
            require_resource_type(given[0])
        except ContractError as error:
            raise RegistrationError(f"tool {name!r} says resource={given!r}: {error}") from error
        return
    takes = ", ".join(signature.parameters) or "no arguments"
    raise RegistrationError(
        f"tool {name!r} says resource={given!r}, which is no type with the argument that names one of them; {name} "
        f"takes {takes}: write resource={resource_for(signature)}"
    )


def first_argument(names_it: str) -> str:
    """The argument that a name, or a pointer into the arguments (RFC 6901), refers to; `""` if it is neither."""
    if not names_it.startswith("/"):
        return names_it
    try:
        return pointer_tokens(names_it)[0]
    except PointerError:
        return ""


def resource_for(signature: Signature) -> str:
    """A suggested resource for a tool of this signature: its first argument, or a constant."""
    if not signature.parameters:
        return '("System", "const:main")'
    first = signature.parameters[0]
    kind = "".join(word.capitalize() for word in first.removesuffix("_id").split("_"))
    return f'("{kind}", "{first}")'
