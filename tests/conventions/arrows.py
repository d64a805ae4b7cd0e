"""The allowed imports between layers, as data. A test reads every import and reports the others.

    channels, jobs -> workflow -> queries -> {pdp, pap, facts, tokens, audit, storage, identity}
                   -> domain -> countersign.contract

A layer may import the layers below it. Layers of one level do not import each other, except `pap -> pdp, facts` and
`facts, audit, identity -> storage`. `app.py` and `cli.py` may import everything; nothing imports them, and
`from_settings.py` is part of `app.py`. The modules in `SHARED` may be imported by every layer but the domain.

The SDK has levels as well (`SDK_LEVELS`): contract, errors, journal and tools at the bottom; transactions, commit and
recovery above; commands on top.
"""

from __future__ import annotations

from tests.conventions.imports import Import

SERVICE = "policy_service"
SDK = "countersign"

# The layers of the SDK, lowest level first: a layer may import itself and layers of lower levels.
SDK_LEVELS = (
    ("contract", "clock", "texts", "tracing"),
    ("errors",),
    ("http_clients", "adapters", "journal", "catalogue"),
    ("settings", "concurrency"),
    ("async_executor",),
    ("service", "tools"),
    ("manifests", "llm"),
    ("runtime",),
    ("process_runtime",),
    ("live",),
    ("commit", "testing"),
    ("recovery",),
    ("transactions",),
    ("simulation", "integrations", "pytest_plugin"),
    ("cli",),
    ("",),  # the package itself: the names that users import
)

# Exceptions: upward imports inside a function or for a type only, each for the sake of a public call.
SDK_UPWARD = {
    "countersign.settings": {"countersign.llm.budgets.Budget"},  # Settings(budgets=(Budget(...),))
    "countersign.llm.calls": {  # llm_call(...) without a runtime: the process's own
        "countersign.runtime.Runtime",
        "countersign.process_runtime.default_runtime",
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

INNER_LAYERS = ("pdp", "pap", "facts", "tokens", "audit", "storage", "identity")
SHARED = frozenset(
    "settings settings_parsing issuers remote_hosts slack http_clients errors metrics health tracing".split()
)

_INNER = SHARED | {"domain"}
_VERBS = _INNER | {*INNER_LAYERS}
# layer -> the layers of the service it may import, in addition to itself
MAY_IMPORT: dict[str, frozenset[str]] = {
    **dict.fromkeys(("app", "cli", "from_settings"), frozenset({"*"})),
    **dict.fromkeys(("channels", "jobs"), _VERBS | {"workflow", "queries"}),
    "workflow": _VERBS | {"queries"},
    "queries": _VERBS,
    **dict.fromkeys(("pdp", "tokens", "storage"), _INNER),
    "pap": _INNER | {"pdp", "facts"},
    **dict.fromkeys(("facts", "audit", "identity"), _INNER | {"storage"}),
    **dict.fromkeys(("domain", "issuers", "logs", "metrics", "sampling"), frozenset[str]()),
    "settings": frozenset({"settings_parsing", "domain", "errors", "issuers", "remote_hosts", "slack"}),
    "settings_parsing": frozenset({"errors"}),
    "http_clients": frozenset({"errors", "remote_hosts", "settings"}),  # the last two as types only
    "slack": frozenset({"issuers"}),
    "remote_hosts": frozenset({"issuers", "http_clients"}),
    "health": frozenset({"metrics"}),
    "tracing": frozenset({"errors", "http_clients", "sampling"}),
    "errors": frozenset({"domain"}),
}
# Modules that every channel may import. They import no channel.
ALL_CHANNELS = frozenset({"requests", "shared_limit", "presentation", "streams"})

# The packages of `workflow`, lowest first: each may import itself, those before it, and the modules of `workflow`.
VERB_LAYERS = tuple(
    "effects passkeys reviews edits revocation releases tasks shadow slack review_export expiry".split()
)

SEES_EVERYTHING = frozenset({"app", "cli"})

# The standard library that the domain may import: no clock, no randomness, no I/O.
PURE = frozenset(
    "__future__ abc base64 bisect collections dataclasses datetime decimal enum fractions functools hashlib "
    "heapq itertools json math operator re string types typing unicodedata".split()
)


def wrong_service_arrows(imports: list[Import]) -> list[str]:
    """Every import of the service that is not allowed, one sentence each."""
    return [f"{one.place}: {why}" for one in imports if (why := _wrong_in_service(one))]


def wrong_sdk_arrows(imports: list[Import]) -> list[str]:
    """Imports in the SDK of the service, of the rest of the SDK by the contract, or of a layer above."""
    return [f"{one.place}: {why}" for one in imports if (why := _wrong_in_sdk(one))]


def _wrong_in_service(one: Import) -> str | None:
    layer = layer_of(one.importer)
    top = one.imported.split(".")[0]
    if top == SERVICE:
        return _wrong_layer(one, layer, layer_of(one.imported))
    if top == SDK:
        return _wrong_part_of_sdk(one, layer)
    if layer == "domain" and top not in PURE:
        return f"the domain is pure and may not use {top}"
    return None


def _wrong_layer(one: Import, layer: str, named: str) -> str | None:
    if layer not in MAY_IMPORT and layer != "":
        return f"the layer map has no layer {layer!r}; add it to tests/conventions/arrows.py and say why"
    if named == "":
        return None
    if layer == "":
        return f"the package itself stays empty and may not import {named}"
    if named == layer:
        return _wrong_channel(one) or _wrong_verb(one)
    if "*" in MAY_IMPORT[layer] or named in MAY_IMPORT[layer]:
        return None
    return f"{layer} may not import {named}"


def _wrong_channel(one: Import) -> str | None:
    here, there = _channel(one.importer), _channel(one.imported)
    if here and there and here != there and there not in ALL_CHANNELS:
        return f"channel {here} may not import channel {there}"
    return None


def _wrong_verb(one: Import) -> str | None:
    here, there = verb_layer_of(one.importer), verb_layer_of(one.imported)
    levels = ("", *VERB_LAYERS)
    if there and levels.index(here) < levels.index(there):
        return f"workflow.{here or '*'} is below {there} and may not import it"
    return None


def _wrong_part_of_sdk(one: Import, layer: str) -> str | None:
    if layer in SEES_EVERYTHING or f"{one.imported}.".startswith(f"{SDK}.contract."):
        return None
    return f"the service shares the contract with the SDK and nothing else, not {one.imported}"


def _wrong_in_sdk(one: Import) -> str | None:
    if one.imported.split(".")[0] == SERVICE:
        return "the SDK never imports the service"
    here, there = (f"{name}.".startswith(f"{SDK}.contract.") for name in (one.importer, one.imported))
    if here and not there and one.imported.split(".")[0] == SDK:
        return f"the contract is self-contained and may not import {one.imported}"
    return _wrong_sdk_level(one)


def _wrong_sdk_level(one: Import) -> str | None:
    if one.imported.split(".")[0] != SDK or one.imported in SDK_UPWARD.get(one.importer, ()):
        return None
    here, there = layer_of(one.importer), layer_of(one.imported)
    level, other = _level(here), _level(there)
    if level is None:
        return f"the layer map has no layer {here!r}; add it to tests/conventions/arrows.py and say why"
    if here != there and (other is None or level <= other):
        return f"{here} is not above {there} and may not import it"
    return None


def _level(layer: str) -> int | None:
    return next((level for level, layers in enumerate(SDK_LEVELS) if layer in layers), None)


def layer_of(module: str) -> str:
    """`policy_service.storage.outbox` lives in `storage`; the package itself in ``."""
    return [*module.split("."), ""][1]


def verb_layer_of(module: str) -> str:
    """`policy_service.workflow.reviews.vote` lives in `reviews`; modules of `workflow` itself in ``."""
    parts = module.split(".")
    return parts[2] if parts[1:2] == ["workflow"] and parts[2:3] and parts[2] in VERB_LAYERS else ""


def _channel(module: str) -> str:
    parts = module.split(".")
    return parts[2] if len(parts) > 2 and parts[1] == "channels" else ""
