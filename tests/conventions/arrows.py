"""The floor plan of design section 10 as data: which room may name which.

    channels, jobs -> workflow -> queries -> {pdp, pap, facts, tokens, audit, storage, identity}
                   -> domain -> countersign.contract

A room sees every floor below its own, never one above and never its neighbours; inside the braces only
`pap -> pdp, facts` and `facts, audit, identity -> storage`. `app.py` and `cli.py` see everything and nobody
sees them; `from_settings.py` is a part of `app.py`. `settings.py`, `configured.py`, `issuers.py`, `remote_hosts.py`,
`slack.py`, `http_clients.py`, `errors.py`, `metrics.py`, `health.py` and `tracing.py` are the ground that everybody
but the domain may stand on.

The SDK is a house of floors (`SDK_FLOORS`): contract, errors, journal and tools below; the step of an agent, its commit
and its recovery above; commands on top.
"""

from __future__ import annotations

from tests.conventions.imports import Import

SERVICE = "policy_service"
SDK = "countersign"

# The rooms of the SDK, from the ground up: a room may name those of the lines before its own, and itself.
SDK_FLOORS = (
    ("contract", "clock", "texts", "tracing"),
    ("concurrency", "errors"),
    ("http_clients", "adapters", "journal", "catalogue"),
    ("settings", "waiting"),
    ("service", "tools"),
    ("manifests", "llm"),
    ("runtime",),
    ("live",),
    ("commit", "testing"),
    ("recovery",),
    ("transactions",),
    ("rehearsal", "integrations", "pytest_plugin"),
    ("cli",),
    ("",),  # the package itself: the names that users import
)

# What points up all the same, inside a function or as a type only. Each serves the one sentence that a user writes.
SDK_UPWARD = {
    "countersign.settings": {"countersign.llm.budgets.Budget"},  # Settings(budgets=(Budget(...),))
    "countersign.llm.calls": {  # llm_call(...) without a runtime: the process's own
        "countersign.runtime.Runtime",
        "countersign.runtime.default_runtime",
    },
    "countersign.tools.definition": {"countersign.manifests.drafts.draft_manifest"},  # Tool.draft_manifest()
    "countersign.tools.context": {"countersign.llm.ledger.Ledger"},  # who counts
    "countersign.transactions.opening": {  # transaction(dry_run=True)
        "countersign.simulation.dry_run.DryRunSimulation",
        "countersign.simulation.offline.Simulation",
    },
    "countersign.transactions.transaction": {  # its .result
        "countersign.simulation.dry_run_report.DryRun",
        "countersign.simulation.offline.Simulation",
    },
    "countersign.transactions.rerun": {  # run_transaction(dry_run=True)
        "countersign.simulation.dry_run.run_dry",
        "countersign.simulation.dry_run_report.DryRun",
    },
}

INNER_ROOMS = ("pdp", "pap", "facts", "tokens", "audit", "storage", "identity")
GROUND = frozenset(
    "settings configured issuers remote_hosts slack http_clients errors metrics health tracing".split()
)

_INNER = GROUND | {"domain"}
_VERBS = _INNER | {*INNER_ROOMS}
# room -> the rooms of the service it may name, besides itself
MAY_NAME: dict[str, frozenset[str]] = {
    **dict.fromkeys(("app", "cli", "from_settings"), frozenset({"*"})),
    **dict.fromkeys(("channels", "jobs"), _VERBS | {"workflow", "queries"}),
    "workflow": _VERBS | {"queries"},
    "queries": _VERBS,
    **dict.fromkeys(("pdp", "tokens", "storage"), _INNER),
    "pap": _INNER | {"pdp", "facts"},
    **dict.fromkeys(("facts", "audit", "identity"), _INNER | {"storage"}),
    **dict.fromkeys(("domain", "issuers", "logs", "metrics", "sampling"), frozenset[str]()),
    "settings": frozenset({"configured", "domain", "errors", "issuers", "remote_hosts", "slack"}),
    **dict.fromkeys(("configured", "http_clients"), frozenset({"errors"})),
    "slack": frozenset({"issuers"}),
    "remote_hosts": frozenset({"issuers", "http_clients"}),
    "health": frozenset({"metrics"}),
    "tracing": frozenset({"errors", "http_clients", "sampling"}),
    "errors": frozenset({"domain"}),
}
# No channels: what any channel may use, and names none.
ALL_CHANNELS = frozenset({"requests", "shared_limit", "showing", "streams"})

# The rooms of `workflow`, lowest first: each names itself, those before it, and the modules beside them.
VERB_ROOMS = (
    *(
        "effects",
        "passkeys",
        "reviews",
        "edits",
        "oversight",
        "releases",
        "tasks",
        "trials",
    ),
    *("slack", "proofs", "due"),
)

SEES_EVERYTHING = frozenset({"app", "cli"})

# What the domain may use beside the contract: no clock, no randomness, no IO.
PURE = frozenset(
    "__future__ abc base64 bisect collections dataclasses datetime decimal enum fractions functools hashlib "
    "heapq itertools json math operator re string types typing unicodedata".split()
)


def wrong_service_arrows(imports: list[Import]) -> list[str]:
    """Every import of the service that the floor plan does not draw, as sentences."""
    return [f"{one.place}: {why}" for one in imports if (why := _wrong_in_service(one))]


def wrong_sdk_arrows(imports: list[Import]) -> list[str]:
    """Every import of the SDK that names the service, or of the contract the rest of the SDK, or that points up."""
    return [f"{one.place}: {why}" for one in imports if (why := _wrong_in_sdk(one))]


def _wrong_in_service(one: Import) -> str | None:
    room = room_of(one.importer)
    top = one.imported.split(".")[0]
    if top == SERVICE:
        return _wrong_room(one, room, room_of(one.imported))
    if top == SDK:
        return _wrong_part_of_sdk(one, room)
    if room == "domain" and top not in PURE:
        return f"the domain is pure and may not use {top}"
    return None


def _wrong_room(one: Import, room: str, named: str) -> str | None:
    if room not in MAY_NAME and room != "":
        return f"the floor plan has no room {room!r}; add it to tests/conventions/arrows.py and say why"
    if named == "":
        return None
    if room == "":
        return f"the package itself stays empty and may not name {named}"
    if named == room:
        return _wrong_channel(one) or _wrong_verb(one)
    if "*" in MAY_NAME[room] or named in MAY_NAME[room]:
        return None
    return f"{room} may not name {named}"


def _wrong_channel(one: Import) -> str | None:
    here, there = _channel(one.importer), _channel(one.imported)
    if here and there and here != there and there not in ALL_CHANNELS:
        return f"channel {here} may not name channel {there}"
    return None


def _wrong_verb(one: Import) -> str | None:
    here, there = verb_room_of(one.importer), verb_room_of(one.imported)
    floors = ("", *VERB_ROOMS)
    if there and floors.index(here) < floors.index(there):
        return f"the verbs of {here or 'workflow itself'} stand below {there} and may not name it"
    return None


def _wrong_part_of_sdk(one: Import, room: str) -> str | None:
    if room in SEES_EVERYTHING or f"{one.imported}.".startswith(f"{SDK}.contract."):
        return None
    return f"the service shares the contract with the SDK and nothing else, not {one.imported}"


def _wrong_in_sdk(one: Import) -> str | None:
    if one.imported.split(".")[0] == SERVICE:
        return "the SDK never imports the service"
    in_contract = f"{one.importer}.".startswith(f"{SDK}.contract.")
    names_sdk = one.imported.split(".")[0] == SDK
    if in_contract and names_sdk and not f"{one.imported}.".startswith(f"{SDK}.contract."):
        return f"the contract stands alone and may not name {one.imported}"
    return _wrong_sdk_floor(one)


def _wrong_sdk_floor(one: Import) -> str | None:
    if one.imported.split(".")[0] != SDK or one.imported in SDK_UPWARD.get(one.importer, ()):
        return None
    here, there = room_of(one.importer), room_of(one.imported)
    if _floor(here) is None:
        return f"the floor plan has no room {here!r}; add it to tests/conventions/arrows.py and say why"
    if here != there and not _stands_above(_floor(here), _floor(there)):
        return f"{here} does not stand above {there} and may not name it"
    return None


def _stands_above(here: int | None, there: int | None) -> bool:
    """A name that is no room's is one of the package itself, which stands on top of all."""
    return here is not None and there is not None and here > there


def _floor(room: str) -> int | None:
    return next((floor for floor, rooms in enumerate(SDK_FLOORS) if room in rooms), None)


def room_of(module: str) -> str:
    """`policy_service.storage.outbox` lives in `storage`; the package itself in ``."""
    return [*module.split("."), ""][1]


def verb_room_of(module: str) -> str:
    """`policy_service.workflow.reviews.vote` lives in `reviews`; what stands beside the rooms in ``."""
    parts = module.split(".")
    return parts[2] if parts[1:2] == ["workflow"] and parts[2:3] and parts[2] in VERB_ROOMS else ""


def _channel(module: str) -> str:
    parts = module.split(".")
    return parts[2] if len(parts) > 2 and parts[1] == "channels" else ""
