"""The policy service of Countersign: decisions, reviews, signed releases and the audit log."""

from importlib.metadata import PackageNotFoundError, version

try:
    __version__ = version("countersign-service")
except PackageNotFoundError:  # run from a checkout that was not installed
    __version__ = "0"
