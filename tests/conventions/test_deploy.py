"""The image and the compose file pass their linters, and the linter of the image sees red where it should."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.conventions.repository import ROOT
from tests.counterparts import require

DEPLOY = ROOT / "deploy"
DOCKERFILE = DEPLOY / "Dockerfile"


def hadolint(dockerfile: Path) -> subprocess.CompletedProcess[str]:
    scripts = Path(sys.executable).parent / "hadolint"
    program = require("hadolint", shutil.which("hadolint", path=scripts.parent), "make env")
    words = [program, "--config", DEPLOY / "hadolint.yaml", dockerfile]
    return subprocess.run(words, capture_output=True, text=True, check=False)


def test_dockerfile_is_lint_free() -> None:
    result = hadolint(DOCKERFILE)
    assert (result.returncode, result.stdout) == (0, "")


@pytest.mark.parametrize(
    ("was", "becomes", "rule"),
    [
        ("FROM python:3.12-slim-bookworm AS build", "FROM python AS build", "DL3006"),
        ("USER 10001:10001", "USER root", "DL3002"),
        ("WORKDIR /src", "WORKDIR src", "DL3000"),
        ("COPY --from=build", "COPY --from=elsewhere", "DL3022"),
    ],
)
def test_a_fault_in_the_dockerfile_is_seen(was: str, becomes: str, rule: str, tmp_path: Path) -> None:
    text = DOCKERFILE.read_text()
    assert was in text
    (tmp_path / "Dockerfile").write_text(text.replace(was, becomes))
    result = hadolint(tmp_path / "Dockerfile")
    assert result.returncode != 0
    assert rule in result.stdout


def test_the_image_runs_as_a_number_and_installs_only_what_is_locked() -> None:
    text = re.sub(r"\\\n\s*", "", DOCKERFILE.read_text())
    last_stage = text[text.rindex("\nFROM ") :]
    assert re.search(r"^USER \d+:\d+$", last_stage, re.M)
    assert "pip" not in last_stage
    installs = re.findall(r"pip(?: --python \S+)? install ([^&\n]+)", text)
    assert len(installs) == 3
    assert [one for one in installs if not re.search("--require-hashes|--no-deps --no-index", one)] == []
    assert set(re.findall(r"^FROM (\S+)", text, re.M)) == {"python:3.12-slim-bookworm"}


def test_everything_the_image_copies_exists_and_is_not_ignored() -> None:
    allowed = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    copies = re.findall(r"^COPY (?!--from)(.+)$", DOCKERFILE.read_text(), re.M)
    sources = [source.rstrip("/") for line in copies for source in line.split()[:-1]]
    assert [source for source in sources if not (ROOT / source).exists()] == []
    assert {source.split("/")[0] for source in sources} == allowed


# ---------------------------------------------------------------------------------------------- compose


def compose_config(file: Path) -> subprocess.CompletedProcess[str]:
    program = require("docker-compose", shutil.which("docker-compose"), "apt-get install docker-compose")
    words = [program, "-f", file, "config", "--quiet"]
    return subprocess.run(words, capture_output=True, text=True, check=False)


def test_compose_file_is_valid() -> None:
    result = compose_config(DEPLOY / "compose.yaml")
    assert (result.returncode, result.stderr) == (0, "")


@pytest.mark.parametrize("name", ["init", "countersign"])
def test_compose_gives_the_container_nothing_it_does_not_need(name: str) -> None:
    service = yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"][name]
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert not {"privileged", "cap_add", "pid", "ipc", "devices"} & service.keys()
    assert service["environment"]["COUNTERSIGN_HOST"] == "127.0.0.1"
    assert "ports" not in service
    assert "../policies:/etc/countersign/bundle:ro" in service["volumes"]
