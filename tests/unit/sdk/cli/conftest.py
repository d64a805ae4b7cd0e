"""What an operator has at a terminal: a service at an address, the environment, and the file of a program's tools."""

import sys
import time

import pytest

from countersign.tools.registry import default_registry
from tests.fakes.desk import Desk, operators_environment
from tests.fakes.service_http import serving


@pytest.fixture
def own_registry(tmp_path):
    """The default registry without what other tests declared; what is imported from the folder is forgotten after."""
    tools, modules = dict(default_registry._tools), set(sys.modules)
    default_registry._tools.clear()
    yield
    for name in set(sys.modules) - modules:
        if str(getattr(sys.modules[name], "__file__", None)).startswith(str(tmp_path)):
            del sys.modules[name]
    sys.path[:] = [entry for entry in sys.path if entry != str(tmp_path)]
    default_registry._tools.clear()
    default_registry._tools.update(tools)


@pytest.fixture
def operated(desk: Desk, monkeypatch):
    """The desk's service over a socket, and the environment an operator sets."""
    with serving(desk.face) as url:
        desk.service.iss, desk.service._now = url, time.time
        for name, value in operators_environment(desk, url).items():
            monkeypatch.setenv(name, value)
        yield desk
