"""The service's own copy of the policies' repository: objects and two refs, in the data folder.

Rules kept here: objects come in a pack that was bounded before it was indexed; nothing is checked out, ever; what was
last in force stays reachable here when the remote is away or has forgotten it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from dulwich.objects import ObjectID
from dulwich.refs import Ref
from dulwich.repo import Repo

from policy_service.http_clients import DIRECT, Route
from policy_service.pap.git.objects import MAX_COMMIT_BYTES, TAG, ObjectError, Objects, open_repository
from policy_service.pap.git.packs import MAX_PACK_BYTES, require_bounded
from policy_service.pap.git.remotes import Asking, Place
from policy_service.pap.problems import HeadError

ACTIVE: Final = "refs/countersign/active"
HEAD: Final = "refs/countersign/head"
_NAME: Final = "policies.git"
_SHA1: Final = 40  # letters of a name
_TAGS_OF_TAGS: Final = 8
_PROTOCOL: Final = 0  # the one every server speaks alike


def mirror_path(data_dir: Path) -> Path:
    """Where the copy lies."""
    return data_dir / _NAME


class Mirror:
    """The copy of one repository's branch or tag. Blocks; belongs in a thread, one call at a time."""

    def __init__(self, path: Path, place: Place, ref: str, timeout_s: float, route: Route = DIRECT) -> None:
        self.path, self._place, self._ref, self._timeout_s = path, place, ref, timeout_s
        self._route = route

    def newest(self) -> str:
        """The commit the branch or tag names now, with its history in the copy.

        Raises:
            HeadError: the repository does not answer, or has no such branch or tag.
        """
        with self._asking() as asking:
            name, sha, object_format = self._ask(asking)
            with self._opened(object_format) as (repo, objects):
                if not objects.holds(sha):
                    self._fetch(asking, repo, sha)
                commit = _peeled(objects, sha, name)
                repo.refs[Ref(HEAD.encode())] = ObjectID(commit.encode())
                return commit

    @contextmanager
    def objects(self) -> Iterator[Objects]:
        """What the copy holds.

        Raises:
            BundleError: there is none.
        """
        repo = open_repository(self.path)
        try:
            yield Objects(repo)
        finally:
            repo.close()

    def keep(self, commit: str) -> None:
        """Remember what is in force: by this it is found when nothing else can be."""
        repo = open_repository(self.path)
        try:
            repo.refs[Ref(ACTIVE.encode())] = ObjectID(commit.encode())
        finally:
            repo.close()

    @contextmanager
    def _asking(self) -> Iterator[Asking]:
        asking = Asking(self._place, self._timeout_s, self._route)
        try:
            yield asking
        except HeadError:
            raise
        except ObjectError as error:
            why = f"what the repository holds cannot be taken: {asking.scrub(str(error))}"
            raise HeadError(self._place.shown, why, "invalid") from error
        except Exception as error:
            # A server may say anything, and dulwich raises a dozen kinds of errors at what it says.
            said = asking.scrub(f"{type(error).__name__}: {error}")
            raise HeadError(
                self._place.shown, f"the repository cannot be read: {said}", "unreachable"
            ) from error
        finally:
            asking.close()

    def _ask(self, asking: Asking) -> tuple[str, str, str]:
        """Name and value of the branch or tag, and how the repository names its objects."""
        listed = asking.client().get_refs(self._place.path.encode(), protocol_version=_PROTOCOL)
        refs = {bytes(name).decode("utf-8", "replace"): sha for name, sha in listed.refs.items() if sha}
        wanted = [self._ref] if self._ref.startswith("refs/") else _meant(self._ref)
        found = [name for name in wanted if name in refs]
        if len(found) > 1:
            why = f"{self._ref!r} is a branch and a tag; write {' or '.join(found)} as policies_ref"
            raise HeadError(self._place.shown, why, "gone")
        if not found:
            empty = "; it is empty" if not refs else ""
            why = f"the repository has no branch or tag {self._ref!r} (policies_ref){empty}"
            raise HeadError(self._place.shown, why, "gone")
        return found[0], bytes(refs[found[0]]).decode("ascii"), listed.object_format or "sha1"

    @contextmanager
    def _opened(self, object_format: str) -> Iterator[tuple[Repo, Objects]]:
        if not (self.path / "HEAD").is_file():
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
            Repo.init_bare(str(self.path), object_format=object_format).close()
        for left in (self.path / "objects/pack").glob("tmp*.pack"):
            left.unlink(missing_ok=True)  # of a process that was killed while it fetched
        repo = open_repository(self.path)
        try:
            yield repo, Objects(repo)
        finally:
            repo.close()

    def _fetch(self, asking: Asking, repo: Repo, sha: str) -> None:
        # dulwich's walker cannot acknowledge a SHA-256 name: such a repository is fetched whole every time.
        refs = [Ref(name.encode()) for name in (ACTIVE, HEAD)] if len(sha) == _SHA1 else []
        heads = [repo.refs[ref] for ref in refs if ref in repo.refs]
        file, commit, abort = repo.object_store.add_pack()
        try:
            asking.client().fetch_pack(
                self._place.path.encode(),
                lambda *_, **__: [ObjectID(sha.encode())],
                repo.get_graph_walker(heads),
                asking.within(file.write, MAX_PACK_BYTES),
                protocol_version=_PROTOCOL,
            )
            file.flush()
            require_bounded(file, len(sha) // 2)
            file.seek(0, os.SEEK_END)
        except BaseException:
            abort()
            raise
        commit()


def _meant(ref: str) -> list[str]:
    return [f"refs/heads/{ref}", f"refs/tags/{ref}"]


def _peeled(objects: Objects, sha: str, name: str) -> str:
    """The commit behind a tag."""
    for _ in range(_TAGS_OF_TAGS):
        if objects.size(sha)[0] != TAG:
            return sha
        first = objects.read(sha, TAG, MAX_COMMIT_BYTES).partition(b"\n")[0]
        sha = first.removeprefix(b"object ").decode("ascii")
    raise ObjectError(f"{name} is a tag of a tag of a tag, and leads to no commit")
