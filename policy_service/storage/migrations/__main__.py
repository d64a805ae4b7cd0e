"""Draft the next migration: ``python -m policy_service.storage.migrations "what changed"``."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from policy_service.storage.migrations import draft, migrate

with tempfile.TemporaryDirectory() as folder:
    url = f"sqlite:///{Path(folder) / 'draft.db'}"
    migrate(url)
    draft(url, sys.argv[1])
