"""The policy service of Countersign: it decides, asks people, signs releases and keeps the record."""

from importlib.metadata import PackageNotFoundError, version

try:
    __version__ = version("countersign-service")
except PackageNotFoundError:  # run from a checkout that was not installed
    __version__ = "0"
