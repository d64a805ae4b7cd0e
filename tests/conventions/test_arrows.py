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


def layers_in(package: Path) -> set[str]:
    modules = {path.stem for path in package.glob("*.py")} - {"__init__"}
    return modules | {path.parent.name for path in package.glob("*/*.py")}


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
    assert layers_in(ROOT / "policy_service") - set(MAY_IMPORT) == set()


HIDDEN = "if t.TYPE_CHECKING:\n    from policy_service.storage import tables\n"
WRONG = [
    # the domain is pure, and each layer imports those below it only
    ("domain/quorum.py", "import time"),
    ("domain/ids.py", "import secrets"),
    ("pdp/engine.py", "import policy_service.storage.database.Tx"),
    ("workflow/releases/submit.py", "import policy_service.channels.http.responses"),
    ("queries/reviews.py", "from policy_service.workflow.reviews.vote import vote"),
    ("workflow/transitions.py", "from policy_service.workflow.releases.submit import Submission"),
    ("channels/presentation/marked_text.py", "from policy_service.channels.web import rendering"),
    # relative imports, and imports in a function, in a string or for types
    ("channels/web/pages.py", "from ..http import problems"),
    ("pdp/engine.py", "from ..storage import tables"),
    ("pdp/engine.py", "def late():\n    from policy_service.storage import tables\n"),
    ("pdp/engine.py", "import importlib\nimportlib.import_module('policy_service.storage.tables')\n"),
    ("pdp/engine.py", f"import typing as t\n{HIDDEN}"),
    # the composition root, the SDK, unknown layers, the package itself
    ("workflow/reviews/vote.py", "import policy_service.app.build"),
    ("workflow/reviews/vote.py", "from countersign.service.client import Client"),
    ("workflow/reviews/vote.py", "import countersign"),
    ("utils/strings.py", "from policy_service.domain import gates"),
    ("__init__.py", "from policy_service.domain import gates"),
]


@pytest.mark.parametrize(("place", "source"), WRONG)
def test_wrong_service_arrow_is_seen(place: str, source: str, tmp_path: Path) -> None:
    _write(tmp_path / "policy_service" / place, source)
    assert len(wrong_service_arrows(imports_of(tmp_path, "policy_service"))) == 1


WRONG_IN_SDK = [
    ("service/client.py", "from policy_service.errors import ServiceError"),
    ("contract/wire.py", "from countersign.service.client import Client"),
    ("contract/wire.py", "from .. import service"),
    ("tools/tool.py", "def late():\n    from countersign.transactions.step import Step\n"),
    ("commit/executor.py", "from countersign.transactions import intake"),
    ("integrations/loop.py", "import countersign.simulation.replay.replay"),  # of the same level
    ("simulation/replay.py", "import countersign.cli.terminal"),
    ("commit/plan.py", "from countersign import transaction"),  # the package itself
    ("strings/cut.py", "from countersign.errors import Denied"),  # no layer of the map
]


@pytest.mark.parametrize(("place", "source"), WRONG_IN_SDK)
def test_wrong_sdk_arrow_is_seen(place: str, source: str, tmp_path: Path) -> None:
    _write(tmp_path / "countersign" / place, source)
    assert len(wrong_sdk_arrows(imports_of(tmp_path, "countersign"))) == 1


def test_every_layer_of_the_sdk_has_one_level() -> None:
    placed = [layer for level in SDK_LEVELS for layer in level]
    assert sorted(placed) == sorted({*layers_in(SDK_ROOT / "countersign"), ""})


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
    "PrivateKey Ed25519PrivateKey load_pem_private_key load_der_private_key from_private_bytes".split()
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
