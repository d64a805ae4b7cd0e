"""The SDK works in a process that has nothing of the service, and none of its own extras."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.conventions.repository import ROOT

BLOCKED = (
    "policy_service fastapi starlette sqlalchemy sqlmodel cedarpy alembic uvicorn jinja2 psycopg apscheduler "
    "structlog prometheus_client pydantic_settings jsonschema multipart python_multipart nacl opentelemetry "
    "openai anthropic mcp"
).split()

WALK = """
import importlib, importlib.abc, pkgutil, sys

blocked = set(sys.argv[1].split(","))

class Refuse(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in blocked:
            raise ModuleNotFoundError(f"blocked: {name}", name=name)

sys.meta_path.insert(0, Refuse())
if len(sys.argv) > 2:
    importlib.import_module(sys.argv[2])
import countersign
names = [one.name for one in pkgutil.walk_packages(countersign.__path__, "countersign.")]
for name in names:
    if not name.endswith("__main__"):
        importlib.import_module(name)
loaded = blocked & {name.split(".")[0] for name in sys.modules}
assert not loaded, loaded
print(len(names))
"""


def _walk(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", WALK, ",".join(BLOCKED), *arguments],
        cwd=ROOT / "sdk" / "python", capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip


def test_every_module_of_the_sdk_imports_without_the_service_and_its_libraries() -> None:
    result = _walk()
    assert result.returncode == 0, result.stderr
    assert int(result.stdout) > 20


@pytest.mark.parametrize("module", ["policy_service", "sqlalchemy.orm"])
def test_the_block_blocks(module: str) -> None:
    result = _walk(module)
    assert result.returncode != 0
    assert f"blocked: {module.split('.')[0]}" in result.stderr
