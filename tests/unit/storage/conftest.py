"""The databases of the storage tests, on both engines."""

from tests.unit.storage.databases import *  # noqa: F403
