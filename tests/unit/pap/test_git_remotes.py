"""The mirror of a repository: https, ssh and folders, bounded in size and time, without showing a password."""

import base64
import fcntl
import os
import subprocess
import threading
import zlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from io import BytesIO
from itertools import pairwise
from pathlib import Path
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, make_server

import pytest

from policy_service.errors import StartError
from policy_service.pap.git import git_source as mirrors
from policy_service.pap.git import objects
from policy_service.pap.git.git_source import Mirror
from policy_service.pap.git.objects import PackError, require_bounded
from policy_service.pap.git.remotes import parse_address
from policy_service.pap.problems import HeadError
from tests.fakes.bundles import PERMIT_ALL, BundleFolder
from tests.fakes.repository import ENVIRONMENT, Repository


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    made = Repository(tmp_path / "rules")
    BundleFolder(made.path).policies(PERMIT_ALL)
    made.commit()
    return made


def mirror(tmp_path: Path, url: str, *, password: str | None = None, timeout_s: float = 30) -> Mirror:
    return Mirror(tmp_path / "policies.git", parse_address(url, password), "main", timeout_s)


def unreachable(copy: Mirror) -> str:
    """The error text when it cannot be reached."""
    with pytest.raises(HeadError) as refused:
        copy.newest()
    assert refused.value.why == "unreachable"
    return str(refused.value)


def holds(copy: Mirror, commit: str) -> bool:
    with copy.objects() as objects:
        return objects.holds(commit)


# -- addresses -------------------------------------------------------------------------------------------------------

SHOWN = {
    **{url: url for url in ("https://example.com/a/b.git", "http://127.0.0.1:8000/b.git", "/srv/rules.git")},
    "https://maya:s3cret@example.com:8443/b.git?x#y": "https://example.com:8443/b.git",
    "https://s3cret@example.com/b.git": "https://example.com/b.git",
    "http://[::1]:8000/b.git": "http://[::1]:8000/b.git",
    "ssh://git@example.com:2222/a/b.git": "ssh://example.com:2222/a/b.git",
    "git@example.com:a/b.git": "ssh://example.com/a/b.git",
    "file:///srv/rules.git": "/srv/rules.git",
}


@pytest.mark.parametrize(("given", "shown"), SHOWN.items())
def test_displayed_address_contains_no_credentials(given: str, shown: str) -> None:
    place = parse_address(given)
    assert place.shown == shown
    assert "s3cret" not in repr(place) or place.username == "s3cret"


REFUSED = [
    *"http://example.com/b.git git://example.com/b.git ftp://example.com/b.git https:///b.git".split(),
    *"https://example.com:port/b.git ssh://git:s3cret@example.com/b.git file://host/srv".split(),
    *"ssh://-oProxyCommand=touch/b.git -oProxyCommand@-x:b.git".split(),
]


@pytest.mark.parametrize("given", REFUSED)
def test_unauthenticated_or_option_like_address_is_refused(given: str) -> None:
    with pytest.raises(StartError, match="policies_repository") as refused:
        parse_address(given)
    assert "s3cret" not in str(refused.value)
    assert parse_address("ext::sh -c touch% /x").kind == "folder", "and no command"


# -- https -----------------------------------------------------------------------------------------------------------


class _Quiet(WSGIRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:
        """Nothing."""


@contextmanager
def serving(answer: Callable[[dict[str, Any], Any], list[bytes]]) -> Iterator[str]:
    """A server on loopback that answers like this."""
    with make_server("127.0.0.1", 0, answer, handler_class=_Quiet) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


@contextmanager
def served(repository: Repository, password: str | None = None) -> Iterator[str]:
    """The repository over smart http on loopback, by git's own http-backend."""
    wanted = None if password is None else "Basic " + base64.b64encode(f"git:{password}".encode()).decode()

    def answer(environ: dict[str, Any], start: Any) -> list[bytes]:
        if wanted is not None and environ.get("HTTP_AUTHORIZATION") != wanted:
            start("401 Unauthorized", [("WWW-Authenticate", "Basic"), ("Content-Length", "0")])
            return []
        return _by_git(repository, environ, start)

    with serving(answer) as url:
        yield f"{url}/rules/.git"


def _by_git(repository: Repository, environ: dict[str, Any], start: Any) -> list[bytes]:
    body = environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
    variables = {name: str(environ.get(name) or "") for name in
            ("REQUEST_METHOD", "PATH_INFO", "QUERY_STRING", "CONTENT_TYPE", "CONTENT_LENGTH")}  # fmt: skip
    variables |= {"GIT_PROJECT_ROOT": str(repository.path.parent), "GIT_HTTP_EXPORT_ALL": "1"}
    done = subprocess.run(["git", "http-backend"], input=body, capture_output=True, check=True, timeout=60,
                          env={"PATH": os.environ["PATH"], **ENVIRONMENT, **variables})  # fmt: skip
    head, _, content = done.stdout.partition(b"\r\n\r\n")
    headers = dict([tuple(line.split(": ", 1)) for line in head.decode().splitlines()])
    start(headers.pop("Status", "200 OK"), [*headers.items(), ("Content-Length", str(len(content)))])
    return [content]


def test_http_repository_is_fetched_and_updated(repository: Repository, tmp_path: Path) -> None:
    with served(repository) as url:
        copy = mirror(tmp_path, url)
        first = copy.newest()
        assert first == repository.head()
        copy.keep(first)
        second = repository.commit("more")
        assert copy.newest() == copy.newest() == second
    assert holds(copy, first) and holds(copy, second)
    assert not (copy.path / "index").exists()
    unreachable(copy)


def test_token_authenticates_and_is_never_shown(repository: Repository, tmp_path: Path) -> None:
    with served(repository, "s3cret") as url:
        assert mirror(tmp_path, url, password="s3cret").newest() == repository.head()
        inside = url.replace("http://", "http://git:s3cret@")
        assert mirror(tmp_path, inside).newest() == repository.head()
        for password in (None, "wr0ng"):
            assert "wr0ng" not in unreachable(mirror(tmp_path / "other", url, password=password))


def test_redirect_is_not_followed(repository: Repository, tmp_path: Path) -> None:
    asked: list[str] = []

    def elsewhere(environ: dict[str, Any], start: Any) -> list[bytes]:
        asked.append(environ["PATH_INFO"])
        start("302 Found", [("Location", f"{good}{environ['PATH_INFO']}?{environ['QUERY_STRING']}")])
        return []

    refused = pytest.raises(HeadError, match="it redirects elsewhere")
    with served(repository) as good, serving(elsewhere) as url, refused:
        mirror(tmp_path, f"{url}/repo").newest()
    assert len(asked) == 1


# -- ssh -------------------------------------------------------------------------------------------------------------


@pytest.fixture
def ssh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An `ssh` on the path that logs its arguments and runs the command on this host."""
    script = tmp_path / "bin/ssh"
    script.parent.mkdir()
    script.write_text('#!/bin/sh\nprintf "%s\\n" "$@" >$0.called\nfor last; do :; done\nexec sh -c "$last"\n')
    script.chmod(0o755)
    monkeypatch.setenv("PATH", f"{script.parent}{os.pathsep}{os.environ['PATH']}")
    return script


def test_ssh_never_prompts_and_checks_known_hosts(repository: Repository, tmp_path: Path, ssh: Path) -> None:
    copy = mirror(tmp_path, f"ssh://git@example.com:2222{repository.path}")
    assert copy.newest() == repository.head()
    second = repository.commit("more")
    assert copy.newest() == second
    called = ssh.with_name("ssh.called").read_text().splitlines()
    names = ("BatchMode", "StrictHostKeyChecking", "ClearAllForwardings")
    options = [("-o", f"{name}=yes") for name in names]
    assert {*options, ("-p", "2222"), ("-l", "git")} <= set(pairwise(called))
    assert called[-3:] == ["--", "example.com", f"git-upload-pack '{repository.path}'"]


def test_path_is_not_interpreted_by_a_shell(repository: Repository, tmp_path: Path, ssh: Path) -> None:
    with pytest.raises(HeadError):
        mirror(tmp_path, f"ssh://example.com/x'; touch {tmp_path}/made; '").newest()
    assert not (tmp_path / "made").exists()


def test_silent_host_times_out_and_its_error_is_truncated(tmp_path: Path, ssh: Path) -> None:
    ssh.write_text("#!/bin/sh\nexec sleep 600\n")
    unreachable(mirror(tmp_path, "ssh://example.com/rules.git", timeout_s=0.3))
    ssh.write_text("#!/bin/sh\nprintf 'Host key verification failed.\\033[2J%5000s' x >&2\nexit 255\n")
    error = unreachable(mirror(tmp_path, "ssh://example.com/rules.git"))
    assert "Host key verification failed." in error
    assert error.isprintable() and len(error) < 500


# -- sizes -----------------------------------------------------------------------------------------------------------


def test_large_history_fails(repository: Repository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mirrors, "MAX_PACK_BYTES", 300)
    copy = mirror(tmp_path, str(repository.path))
    with pytest.raises(HeadError, match="its history is larger than 300 bytes"):
        copy.newest()
    assert not holds(copy, repository.head())
    assert list((copy.path / "objects/pack").iterdir()) == []


def test_large_object_fails(repository: Repository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(objects, "MAX_OBJECT_BYTES", 1_000_000)
    repository.write("facts/a.json", b" " * 1_000_001).commit()
    copy = mirror(tmp_path, str(repository.path))
    with pytest.raises(HeadError, match="an object of 1000001 bytes; 1000000 is the limit"):
        copy.newest()
    assert not holds(copy, repository.head())


def _pack(*objects: bytes, count: int | None = None) -> BytesIO:
    number = len(objects) if count is None else count
    return BytesIO(b"PACK\0\0\0\2" + number.to_bytes(4, "big") + b"".join(objects) + b"\0" * 20)


def _blob(size: int, data: bytes) -> bytes:
    first, rest = 3 << 4 | size & 15, size >> 4
    header = [first | 0x80] if rest else [first]
    while rest:
        header.append(rest & 0x7F | (0x80 if rest >> 7 else 0))
        rest >>= 7
    return bytes(header) + zlib.compress(data)


DELTA = bytes([7 << 4 | 10]) + b"\x11" * 20 + zlib.compress(b"\x05" + b"\xff\xff\xff\xff\x7f" + b"\x90\x05")
BAD = {
    "no pack": (BytesIO(b"nothing"), "does not begin as one"),
    "one that ends early": (_pack(_blob(5, b"hello"), count=2), "the pack is damaged"),
    "an object that says less than it is": (_pack(_blob(5, b"x" * 10_000_000)), "larger than it says"),
    "an object that says too much": (_pack(_blob(2**40, b"x")), "is the limit"),
    "a delta that makes too much": (_pack(DELTA), "is the limit"),
    "too many": (_pack(count=3_000_000), "3000000 objects"),
    "no zlib": (_pack(b"\x35nonsense"), "the pack is damaged"),
    "an unknown kind": (_pack(b"\x55" + zlib.compress(b"hello")), "no kind 5"),
    "made from nothing": (_pack(b"\x65\x7f" + zlib.compress(b"\x05\x05x")), "not there"),
}


@pytest.mark.parametrize(("pack", "message"), BAD.values(), ids=BAD.keys())
def test_invalid_pack_is_refused_before_indexing(pack: BytesIO, message: str) -> None:
    with pytest.raises(PackError, match=message):
        require_bounded(pack, 20)


def test_valid_pack_is_scanned_to_its_end() -> None:
    require_bounded(_pack(_blob(5, b"hello"), _blob(200_000, b"x" * 200_000), _blob(0, b"")), 20)


def test_leftovers_of_a_killed_fetch_are_removed(repository: Repository, tmp_path: Path) -> None:
    copy = mirror(tmp_path, str(repository.path))
    copy.newest()
    left = copy.path / "objects/pack/tmpabc.pack"
    left.write_bytes(b"PACK")
    repository.commit("more")
    copy.newest()
    assert not left.exists()


@pytest.mark.parametrize("step", ["fetch", "keep"])
def test_workers_use_the_mirror_that_they_share_one_at_a_time(
    step: str, repository: Repository, tmp_path: Path
) -> None:
    """Another worker's unfinished pack looks like that of a killed process."""
    copy = mirror(tmp_path, str(repository.path))
    commit = copy.newest()
    unfinished = copy.path / "objects/pack/tmp_1.pack"
    unfinished.touch()
    with ThreadPoolExecutor() as pool:
        other = os.open(copy.path, os.O_RDONLY)
        fcntl.flock(other, fcntl.LOCK_EX)
        running = pool.submit(copy.newest) if step == "fetch" else pool.submit(copy.keep, commit)
        with pytest.raises(TimeoutError):
            running.result(timeout=0.5)
        assert unfinished.exists()
        os.close(other)
        running.result(timeout=30)
    assert unfinished.exists() is (step == "keep")
