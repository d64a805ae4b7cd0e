"""A tool as people and agents may read it: its manifests in force, and what of a call policy cannot see."""

from __future__ import annotations

from countersign.contract import JSON
from policy_service.pap.bundle import Bundle
from policy_service.pap.tools import ToolVersion


def tool_view(bundle: Bundle, version: ToolVersion) -> dict[str, JSON]:
    """One version of a tool with its unseen fields, and every version of that tool that is in force."""
    return {
        "manifest": version.manifest.to_json(),
        "tool_digest": version.manifest.digest,
        "unseen": list(version.unseen),
        "versions": [
            {"tool_digest": each.manifest.digest, "current": each.label is None, "file": each.file}
            for each in bundle.tools
            if each.tool == version.tool
        ],
    }
