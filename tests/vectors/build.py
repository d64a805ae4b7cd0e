"""Write every vector file: `python tests/vectors/build.py [--out FOLDER]`.

A rerun gives the same bytes (fixed keys, fixed times), so the diff of a change is what it changes on the
wire. A test runs this and compares. Good tokens are made by the contract; faults are made by hand in `make/`.
"""

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

from make import proofs, receipts, releases, values

HERE = Path(__file__).parent
FOLDERS = {"tokens": releases, "receipts": receipts, "proofs": proofs}


def files() -> Iterator[tuple[str, Any]]:
    """Every (path, value)."""
    yield from values.admission().items()
    yield from values.canonical().items()
    yield from values.names().items()
    for folder, kind in FOLDERS.items():
        yield from _tokens(folder, kind)


def _tokens(folder: str, kind: ModuleType) -> Iterator[tuple[str, Any]]:
    for name, text, expected in kind.good():
        yield f"{folder}/good/{name}.json", _vector(text, expected, {"accepted": True})
    for name, text, expected, step, code in kind.bad():
        answer = {"accepted": False, "step": step, "code": code}
        yield f"{folder}/bad/{name}.json", _vector(text, expected, answer)


def _vector(text: str, expected: Any, answer: Any) -> dict[str, Any]:
    return {"token": text, "expectation": expected, "answer": answer}


def write(out: Path) -> int:
    """Write all files below `out`; no two may share a name."""
    written: set[str] = set()
    for name, value in files():
        if name in written:
            raise AssertionError(f"two vectors are called {name}")
        written.add(name)
        path = out / name
        path.parent.mkdir(parents=True, exist_ok=True)
        text = json.dumps(value, indent=1, ensure_ascii=True, sort_keys=True)
        path.write_text(f"{text}\n", encoding="ascii")
    return len(written)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=HERE)
    print(write(parser.parse_args().out), "files")
