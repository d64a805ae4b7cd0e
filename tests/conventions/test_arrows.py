"""Imports follow the layer map; each kind of wrong import is detected."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from tests.conventions.arrows import (
    INNER_LAYERS,
    MAY_IMPORT,
    SDK_LEVELS,
    SDK_UPWARD,
    VERB_LAYERS,
    layer_of,
    wrong_sdk_arrows,
    wrong_service_arrows,
)
from tests.conventions.imports import imports_of

ROOT = Path(__file__).resolve().parents[2]
SDK_ROOT = ROOT / "sdk" / "python"


def test_service_imports_follow_the_layer_map() -> None:
    imports = imports_of(ROOT, "policy_service")
    assert len(imports) > 100, "the reader found hardly any imports; it is broken"
    assert wrong_service_arrows(imports) == []


def test_sdk_never_imports_the_service_and_the_contract_is_self_contained() -> None:
    imports = imports_of(SDK_ROOT, "countersign")
    assert len(imports) > 50, "the reader found hardly any imports; it is broken"
    assert wrong_sdk_arrows(imports) == []


def test_every_layer_of_verbs_has_its_level() -> None:
    folder = ROOT / "policy_service" / "workflow"
    assert {path.parent.name for path in folder.glob("*/__init__.py")} == set(VERB_LAYERS)


def test_every_layer_on_disk_is_in_the_layer_map() -> None:
    folder = ROOT / "policy_service"
    layers = {path.stem for path in folder.glob("*.py")} | {
        path.parent.name for path in folder.glob("*/*.py")
    }
    assert layers - {"__init__", *MAY_IMPORT} == set()


WRONG = {
    "a pure rule reads the clock": ("domain/quorum.py", "import time"),
    "the domain draws random ids": ("domain/ids.py", "import secrets"),
    "the decision point reads the database": ("pdp/engine.py", "import policy_service.storage.database.Tx"),
    "a verb answers HTTP": ("workflow/releases/submit.py", "import policy_service.channels.http.responses"),
    "a query runs a verb": (
        "queries/reviews.py",
        "from policy_service.workflow.reviews.vote import vote",
    ),
    "a shared module imports a verb": (
        "workflow/transitions.py",
        "from policy_service.workflow.releases.submit import Submission",
    ),
    "what all channels share uses one of them": (
        "channels/presentation/marked_text.py",
        "from policy_service.channels.web import rendering",
    ),
    "one channel uses another, relatively": ("channels/web/pages.py", "from ..http import problems"),
    "a relative import reaches another layer": ("pdp/engine.py", "from ..storage import tables"),
    "an import hides in a function": (
        "pdp/engine.py",
        "def late():\n    from policy_service.storage import tables\n",
    ),
    "an import hides in a string": (
        "pdp/engine.py",
        "import importlib\nimportlib.import_module('policy_service.storage.tables')\n",
    ),
    "an import hides behind TYPE_CHECKING": (
        "pdp/engine.py",
        "import typing as t\nif t.TYPE_CHECKING:\n    from policy_service.storage import tables\n",
    ),
    "somebody names the composition root": ("workflow/reviews/vote.py", "import policy_service.app.build"),
    "the service uses the SDK's client": (
        "workflow/reviews/vote.py",
        "from countersign.service.client import Client",
    ),
    "the service uses the SDK as a whole": ("workflow/reviews/vote.py", "import countersign"),
    "a layer that is not in the map": ("utils/strings.py", "from policy_service.domain import gates"),
    "the package itself is not empty": ("__init__.py", "from policy_service.domain import gates"),
}


@pytest.mark.parametrize(("place", "source"), WRONG.values(), ids=WRONG.keys())
def test_wrong_service_arrow_is_seen(place: str, source: str, tmp_path: Path) -> None:
    _write(tmp_path / "policy_service" / place, source)
    assert len(wrong_service_arrows(imports_of(tmp_path, "policy_service"))) == 1


WRONG_IN_SDK = {
    "the client imports the service": ("service/client.py", "from policy_service.errors import ServiceError"),
    "the contract imports the client": ("contract/wire.py", "from countersign.service.client import Client"),
    "the contract imports its parent": ("contract/wire.py", "from .. import service"),
    "a tool knows the step that it is called in": (
        "tools/tool.py",
        "def late():\n    from countersign.transactions.step import Step\n",
    ),
    "the commit knows the block": ("commit/executor.py", "from countersign.transactions import intake"),
    "another layer of the same level": (
        "integrations/loop.py",
        "import countersign.simulation.replay.replay",
    ),
    "somebody names the command line": ("simulation/replay.py", "import countersign.cli.terminal"),
    "a layer names the package of all": ("commit/plan.py", "from countersign import transaction"),
    "a layer that is not in the map": ("strings/cut.py", "from countersign.errors import Denied"),
}


@pytest.mark.parametrize(("place", "source"), WRONG_IN_SDK.values(), ids=WRONG_IN_SDK.keys())
def test_wrong_sdk_arrow_is_seen(place: str, source: str, tmp_path: Path) -> None:
    _write(tmp_path / "countersign" / place, source)
    assert len(wrong_sdk_arrows(imports_of(tmp_path, "countersign"))) == 1


def test_every_layer_of_the_sdk_has_one_level() -> None:
    folder = SDK_ROOT / "countersign"
    layers = {path.stem for path in folder.glob("*.py")} | {
        path.parent.name for path in folder.glob("*/*.py")
    }
    placed = [layer for level in SDK_LEVELS for layer in level]
    assert sorted(placed) == sorted({*layers - {"__init__"}, ""})


def test_every_arrow_that_may_point_up_is_drawn() -> None:
    drawn = {(one.importer, one.imported) for one in imports_of(SDK_ROOT, "countersign")}
    assert {(here, there) for here, all_of in SDK_UPWARD.items() for there in all_of} <= drawn


def test_inner_layers_have_only_the_four_allowed_imports() -> None:
    drawn = {(layer, other) for layer in INNER_LAYERS for other in MAY_IMPORT[layer] & set(INNER_LAYERS)}
    assert drawn == {
        ("pap", "pdp"), ("pap", "facts"), ("facts", "storage"), ("audit", "storage"), ("identity", "storage"),
    }  # fmt: skip


# ------------------------------------------------------------------------------------------- private keys

READS_PRIVATE_KEYS = frozenset(
    {"PrivateKey", "Ed25519PrivateKey", "load_pem_private_key", "load_der_private_key", "from_private_bytes"}
)


def private_key_readers(root: Path) -> dict[str, set[str]]:
    """Module -> the names in it that can open a private key."""
    found: dict[str, set[str]] = {}
    for path in sorted((root / "policy_service").rglob("*.py")):
        names = _names_used(path) & READS_PRIVATE_KEYS
        if names:
            found[".".join(path.relative_to(root).with_suffix("").parts)] = names
    return found


def _names_used(path: Path) -> set[str]:
    used: set[str] = set()
    for node in ast.walk(ast.parse(path.read_bytes())):
        if isinstance(node, ast.Name):
            used.add(node.id)
        elif isinstance(node, ast.Attribute):
            used.add(node.attr)
        elif isinstance(node, ast.alias):
            used.add(node.name.rpartition(".")[2])
    return used


def test_tokens_is_the_only_reader_of_private_keys() -> None:
    readers = private_key_readers(ROOT)
    assert readers, "no module reads a private key; this test checks nothing"
    outside = {module for module in readers if layer_of(module) != "tokens"}
    assert outside <= {"policy_service.cli"}
    uses = re.findall(r"PrivateKey\b(\.\w+)?", (ROOT / "policy_service/cli.py").read_text())
    assert set(uses) <= {"", ".generate"}, "the command line makes an agent's first key and reads none"


def test_a_private_key_read_elsewhere_is_seen(tmp_path: Path) -> None:
    x = tmp_path / "policy_service/channels/http/x.py"
    _write(x, "from countersign.contract.keys import PrivateKey as K")
    _write(tmp_path / "policy_service/audit/log.py", "import countersign.contract as c\nc.keys.PrivateKey\n")
    assert {layer_of(module) for module in private_key_readers(tmp_path)} == {"channels", "audit"}


def _write(path: Path, source: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(source)
