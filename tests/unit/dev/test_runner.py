"""A script of `dev` runs as with `python SCRIPT`; only an uncaught ReviewPending is printed without a traceback."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from policy_service.channels.admin.dev.processes import SCRIPT_RUNNER
from tests.conventions.repository import ROOT

PENDING = """
from countersign import ReviewPending
class Later(ReviewPending):
    def __init__(self): Exception.__init__(self, "case-1 waits for developers")
def ask(): raise Later
"""
AS_ANYWHERE = {
    "what a program knows of itself": (
        "import sys\nprint(__name__, __file__, sys.argv, sys.path[0], __spec__, __doc__)\n"
        "print(sys.modules['__main__'].__dict__ is globals())\n"
    ),
    "what it defines can be pickled": (
        "import multiprocessing, pickle\n\n\ndef twice(n): return 2 * n\n\n\n"
        "if __name__ == '__main__':\n"
        "    assert pickle.loads(pickle.dumps(twice)) is twice\n"
        "    with multiprocessing.get_context('spawn').Pool(1) as pool: print(pool.map(twice, [1, 2]))\n"
    ),
    "an exit status": "import sys\nsys.exit(3)\n",
    "a sentence to exit with": "raise SystemExit('no')\n",
    "an error": "def f():\n    raise ValueError('oh')\n\n\nf()\n",
    "an error while another is handled": "try:\n    1 / 0\nexcept ZeroDivisionError:\n    raise ValueError('oh')\n",
    "a syntax error": "x = (\n",
    "an interrupt": "raise KeyboardInterrupt\n",
    "a hook of its own": "import sys\nsys.excepthook = lambda *got: print('mine', got[1])\nraise ValueError('oh')\n",
    "names that are not its own": "print(sorted(globals()))\n",
    "a question to people while another error is handled": f"{PENDING}try:\n    1 / 0\nexcept Exception:\n    ask()\n",
}


def run(folder: Path, script: str, *runner: str) -> subprocess.CompletedProcess[str]:
    (folder / "my_agent.py").write_text(script)
    return subprocess.run(
        [sys.executable, *runner, str(folder / "my_agent.py"), "--fast", "case 1"],
        cwd=folder, env=os.environ | {"PYTHONPATH": str(ROOT / "sdk/python")},
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip


@pytest.mark.parametrize("script", AS_ANYWHERE.values(), ids=AS_ANYWHERE)
def test_a_script_runs_as_under_python(script: str, tmp_path: Path) -> None:
    both = [run(tmp_path, script, *runner) for runner in ([SCRIPT_RUNNER], [])]
    here, anywhere = ((one.returncode, one.stdout, one.stderr) for one in both)
    assert here == anywhere


def test_an_uncaught_pending_review_is_one_line_and_a_failure(tmp_path: Path) -> None:
    done = run(tmp_path, PENDING + "ask()\n", SCRIPT_RUNNER)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "Later: case-1 waits for developers\n"
