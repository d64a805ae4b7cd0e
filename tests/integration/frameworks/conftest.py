"""Agents of the frameworks as processes of their own, the real service, and a payment provider on loopback."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from countersign import Settings, ToolRegistry
from countersign.manifests.drafts import manifest_json
from countersign.tools.tool import tool_of
from examples.local_service import LocalService, free_port
from examples.person import Person
from tests.conventions.repository import ROOT
from tests.counterparts import require
from tests.fakes.desk import agent_environment
from tests.fakes.local_service import WarmService
from tests.fakes.receivers import Receiver
from tests.integration.frameworks.agents import scripted

AGENTS = Path(__file__).with_name("agents")
ENVIRONMENTS = {"crewai": ".venv-crewai"}
POLICY = """
@id("desk-may-act")
permit (principal in Role::"support-agent", action, resource);

@id("large-needs-finance") @approval("finance")
forbid (principal, action, resource)
when { context.input.amount_cents > 5000 };

@id("never-huge") @doc("Refunds above 5,000.00 are not made here.")
forbid (principal, action, resource)
when { context.input.amount_cents > 500000 };
"""


@dataclass
class Shop:
    """One agent of one framework, the service it asks, the people who answer, and what the provider received."""

    framework: str
    folder: Path
    settings: Settings
    provider: Receiver
    people: dict[str, Person]
    key: str
    environment: dict[str, str] = field(default_factory=dict)

    def run(self, step: str, *amounts: int, **order: Any) -> dict[str, Any]:
        """Run the agent's process once. Returns its report."""
        calls = [
            {"order_id": f"o-{place}", "amount_cents": one, "currency": "USD"}
            for place, one in enumerate(amounts, start=1)
        ]
        given = {"step": step, "key": self.key, "calls": calls, "answer": "approved", "gate": self.gate}
        order = given | order
        done = self.process(order)
        assert done.returncode == 0, done.stderr[-4000:]
        assert not (self.folder / "network.txt").exists(), "it reached for something beyond loopback"
        report: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        return report

    def process(self, order: dict[str, Any]) -> subprocess.CompletedProcess[str]:
        """The same, with the process as it ended."""
        framework = self.framework.partition(":")[0]
        python = ROOT / ENVIRONMENTS.get(framework, ".venv-frameworks") / "bin/python"
        require(f"the environment of {framework}", python.exists() and python, "make frameworks")
        return subprocess.run(
            [str(python), str(AGENTS / f"{framework}_agent.py")],
            env=self._environment() | {"AGENT_ORDER": json.dumps(order)},
            capture_output=True,
            text=True,
            check=False,
            cwd=self.folder,
            timeout=120,
        )

    def _environment(self) -> dict[str, str]:
        """No variable of this process, and no key of a vendor."""
        own = {
            "PATH": "/usr/bin:/bin",
            "HOME": str(self.folder),
            "PYTHONPATH": f"{AGENTS}:{ROOT / 'sdk/python'}",  # with its sitecustomize.py
            "AGENT_FOLDER": str(self.folder),
            "PROVIDER_URL": self.provider.url,
            "COUNTERSIGN_JOURNAL": str(self.settings.journal_path),
            "COUNTERSIGN_ALLOW_DEV": "1",
        }
        return agent_environment(self.settings) | own | self.environment

    @property
    def gate(self) -> str:
        """Which of two gates the framework has, as in `claude_tools:hook`."""
        return self.framework.partition(":")[2]

    @property
    def paid(self) -> list[int]:
        """The amounts that the provider received."""
        return [json.loads(one.raw)["amount_cents"] for one in self.provider.got]

    def review(self, report: dict[str, Any]) -> str:
        """Where people answer the one open review of a report."""
        ((review,),) = [one["reviews"] for one in report["pending"]]
        assert (review["tool"], review["waiting_for"]) == ("refund", ["finance"])
        return str(review["url"])

    def approve(self, report: dict[str, Any], by: str = "maya") -> None:
        """Approve it."""
        self.people[by].approve(self.review(report), "looks right")


@pytest.fixture(scope="session")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalService]:
    """The real service; the draft of the tool is reviewed as it is."""
    folder = tmp_path_factory.mktemp("frameworks")
    bundle = folder / "bundle"
    (bundle / "tools").mkdir(parents=True)
    (bundle / "shop.cedar").write_text(POLICY)
    (bundle / "groups.toml").write_bytes((ROOT / "policies/groups.toml").read_bytes())
    manifest = tool_of(scripted.declare(ToolRegistry())).draft_manifest()
    (bundle / "tools/refund.json").write_bytes(manifest_json(manifest))
    with WarmService(folder / "service", bundle, port=free_port()) as served:
        yield served


@pytest.fixture(scope="session")
def people(service: LocalService) -> Iterator[dict[str, Person]]:
    with Person(service.url) as maya, Person(service.url) as tomas:
        maya.sign_in(service.sign_in_link("maya"))
        tomas.sign_in(service.sign_in_link("tomas"))
        yield {"maya": maya, "tomas": tomas}


@pytest.fixture(scope="session")
def settings(service: LocalService) -> Settings:
    return service.enroll("support", "support-agent")


@pytest.fixture
def shop(
    framework: str,
    settings: Settings,
    people: dict[str, Person],
    tmp_path: Path,
    request: pytest.FixtureRequest,
) -> Iterator[Shop]:
    own = replace(settings, journal_path=tmp_path / "journal.db")
    with Receiver() as provider:
        yield Shop(framework, tmp_path, own, provider, people, str(request.node.name)[:100])
