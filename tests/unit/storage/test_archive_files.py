"""The archive files: lines are durable, a torn one spoils no other, the last complete one counts."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path
from typing import Any

import pytest

from policy_service.storage import archive_files
from policy_service.storage.archive_files import (
    append_lines,
    archived_lines,
    encode_line,
    find_export,
    line_digest,
)

NAME = "2026-11.jsonl"


def line(txn: str, **exports: bytes) -> bytes:
    return encode_line(txn, {"effects": [{"txn": txn}]}, exports)


def test_lines_are_appended(tmp_path: Path) -> None:
    folder = tmp_path / "archive"
    append_lines(folder, NAME, [line("a"), line("b")])
    append_lines(folder, NAME, [line("c")])
    file = folder / NAME
    assert file.read_bytes() == b"".join(line(txn) + b"\n" for txn in "abc")
    assert [stat.S_IMODE(path.stat().st_mode) for path in (folder, file)] == [0o700, 0o600]


def test_a_torn_line_is_ended_before_the_next_one(tmp_path: Path) -> None:
    append_lines(tmp_path, NAME, [line("a", rev_1=b"old")])
    whole = line("b", rev_2=b"torn")
    with (tmp_path / NAME).open("ab") as file:
        file.write(whole[: len(whole) // 2])
    append_lines(tmp_path, NAME, [line("b", rev_2=b"new")])
    files = [tmp_path / NAME]
    assert (tmp_path / NAME).read_bytes().endswith(b"\n" + line("b", rev_2=b"new") + b"\n")
    assert [record["txn"] for _, record in archived_lines(files, "rev_")] == ["a", "b"]
    assert find_export(files, "rev_2") == (b"new", line_digest(line("b", rev_2=b"new")))


def test_the_last_line_of_a_review_counts(tmp_path: Path) -> None:
    append_lines(tmp_path, NAME, [line("a", rev_1=b"old")])
    append_lines(tmp_path, "2026-12.jsonl", [line("a", rev_1=b"new"), line("b", rev_2=b"other")])
    files = archive_files.archive_files(tmp_path)
    assert [path.name for path in files] == [NAME, "2026-12.jsonl"]
    assert find_export(files, "rev_1") == (b"new", line_digest(line("a", rev_1=b"new")))
    assert find_export(files[:1], "rev_1") == (b"old", line_digest(line("a", rev_1=b"old")))
    assert find_export(files, "rev_3") is None


@pytest.mark.parametrize(
    "content", ["[]", "1", '"rev_1"', '{"exports": ["rev_1"]}', '{"exports": {"rev_1": {}}}']
)
def test_a_line_of_another_form_is_no_export(tmp_path: Path, content: str) -> None:
    (tmp_path / NAME).write_text(f"{content}\nrev_1\n")
    assert find_export([tmp_path / NAME], "rev_1") is None


def test_the_file_is_synced_and_then_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[tuple[str, int]] = []
    sync = os.fsync

    def noted(handle: int) -> Any:
        path = Path(f"/proc/self/fd/{handle}").readlink()
        synced.append((path.name, path.stat().st_size if path.is_file() else 0))
        return sync(handle)

    monkeypatch.setattr(archive_files.os, "fsync", noted)
    append_lines(tmp_path / "archive", NAME, [line("a")])
    assert synced == [(NAME, len(line("a")) + 1), ("archive", 0), (tmp_path.name, 0)]


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / NAME).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError):
        append_lines(tmp_path, NAME, [line("a")])
    assert not (tmp_path / "elsewhere").exists()


def test_a_line_is_canonical() -> None:
    record = json.loads(line("a", rev_1=b'{"seal":1}'))
    assert record == {
        "exports": {"rev_1": '{"seal":1}'},
        "rows": {"effects": [{"txn": "a"}]},
        "txn": "a",
        "v": 1,
    }
