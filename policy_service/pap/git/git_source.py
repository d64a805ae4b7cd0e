"""Follow a branch or tag: the service's mirror of the repository, and which commits may be activated.

- A new head descends from the active commit, or an operator has accepted it explicitly.
- With allowed signers, one of them signed the head. The head alone needs a signature: it names its tree and history by
  hash, so the signature covers exactly the activated bytes. A forge's merge button then needs no key.
- Objects arrive in a pack that is bounded before it is indexed. Nothing is ever checked out.
- The last active commit stays reachable in the mirror when the remote is down or has dropped it.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path
from typing import Final

from dulwich.objects import ObjectID
from dulwich.refs import Ref, check_ref_format
from dulwich.repo import Repo

from policy_service.errors import StartError
from policy_service.http_clients import DIRECT, Route, route_from_settings
from policy_service.pap.git.commits import is_descendant, load_commit, read_bundle_files
from policy_service.pap.git.objects import (
    COMMIT,
    MAX_COMMIT_BYTES,
    MAX_PACK_BYTES,
    TAG,
    ObjectError,
    Objects,
    open_repository,
    require_bounded,
)
from policy_service.pap.git.remotes import RemoteSession, RepositoryAddress, parse_address
from policy_service.pap.git.signatures import (
    AllowedSignersError,
    SignatureError,
    read_allowed_signers,
    require_signed,
)
from policy_service.pap.problems import HeadError
from policy_service.pap.source import AcceptedCommits, BundleFiles, CommitInfo
from policy_service.settings import Settings

ACTIVE_REF: Final = "refs/countersign/active"
HEAD_REF: Final = "refs/countersign/head"
_NAME: Final = "policies.git"
_SHA1: Final = 40  # letters of a name
_TAGS_OF_TAGS: Final = 8
_LOCK_POLL_S: Final = 0.1
_PROTOCOL: Final = 0  # the one every server speaks alike


def mirror_path(data_dir: Path) -> Path:
    return data_dir / _NAME


class Mirror:
    """A local copy of one repository's branch or tag. Blocks; belongs in a thread, one call at a time."""

    def __init__(
        self, path: Path, place: RepositoryAddress, ref: str, timeout_s: float, route: Route = DIRECT
    ) -> None:
        self.path, self._place, self._ref, self._timeout_s = path, place, ref, timeout_s
        self._route = route

    def newest(self) -> str:
        """Fetch the commit that the branch or tag names now, with its history.

        Raises:
            HeadError: the repository does not answer, or has no such branch or tag.
        """
        with self._session() as session:
            name, sha, object_format = self._resolve(session)
            with self._open(object_format) as (repo, objects):
                if not objects.holds(sha):
                    self._fetch(session, repo, sha)
                commit = _peeled(objects, sha, name)
                repo.refs[Ref(HEAD_REF.encode())] = ObjectID(commit.encode())
                return commit

    @contextmanager
    def objects(self) -> Iterator[Objects]:
        """The objects in the mirror.

        Raises:
            BundleError: there is no mirror yet.
        """
        with open_repository(self.path) as repo:
            yield Objects(repo)

    def keep(self, commit: str) -> None:
        """Reference the active commit, so that it stays available without the remote.

        Raises:
            HeadError: another process holds the mirror.
        """
        with self._locked(), open_repository(self.path) as repo:
            repo.refs[Ref(ACTIVE_REF.encode())] = ObjectID(commit.encode())

    @contextmanager
    def _session(self) -> Iterator[RemoteSession]:
        session = RemoteSession(self._place, self._timeout_s, self._route)
        try:
            yield session
        except HeadError:
            raise
        except ObjectError as error:
            why = f"the repository's objects are refused: {session.scrub(str(error))}"
            raise HeadError(self._place.shown, why, "invalid") from error
        except Exception as error:
            # A server may send anything, and dulwich raises a dozen kinds of errors for it.
            why = f"the repository cannot be read: {session.scrub(f'{type(error).__name__}: {error}')}"
            raise HeadError(self._place.shown, why, "unreachable") from error
        finally:
            session.close()

    def _resolve(self, session: RemoteSession) -> tuple[str, str, str]:
        """Name and value of the branch or tag, and the repository's object format."""
        listed = session.client().get_refs(self._place.path.encode(), protocol_version=_PROTOCOL)
        refs = {bytes(name).decode("utf-8", "replace"): sha for name, sha in listed.refs.items() if sha}
        wanted = [self._ref] if self._ref.startswith("refs/") else _ref_names(self._ref)
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
    def _open(self, object_format: str) -> Iterator[tuple[Repo, Objects]]:
        self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        with self._locked():
            if not (self.path / "HEAD").is_file():
                Repo.init_bare(str(self.path), object_format=object_format).close()
            for left in (self.path / "objects/pack").glob("tmp*.pack"):
                left.unlink(missing_ok=True)  # of a process that was killed while it fetched
            with open_repository(self.path) as repo:
                yield repo, Objects(repo)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Workers share a mirror: one must neither delete the pack that another fetches nor meet its locked ref.

        Raises:
            HeadError: another process has held it for as long as a fetch may take.
        """
        handle = os.open(self.path, os.O_RDONLY)
        try:
            self._lock(handle)  # the kernel releases it if the process dies
            yield
        finally:
            os.close(handle)

    def _lock(self, handle: int) -> None:
        ends = time.monotonic() + self._timeout_s
        while True:
            try:
                return fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                if time.monotonic() >= ends:
                    why = (
                        f"another process has held its mirror {self.path} for {self._timeout_s:g} s "
                        "(policies_timeout_s); its fetch hangs"
                    )
                    raise HeadError(self._place.shown, why, "unreachable") from error
            time.sleep(_LOCK_POLL_S)

    def _fetch(self, session: RemoteSession, repo: Repo, sha: str) -> None:
        # dulwich's walker cannot acknowledge a SHA-256 name, so such a repository is fetched whole every time.
        refs = [Ref(name.encode()) for name in (ACTIVE_REF, HEAD_REF)] if len(sha) == _SHA1 else []
        heads = [repo.refs[ref] for ref in refs if ref in repo.refs]
        file, commit, abort = repo.object_store.add_pack()
        try:
            session.client().fetch_pack(
                self._place.path.encode(),
                lambda *_, **__: [ObjectID(sha.encode())],
                repo.get_graph_walker(heads),
                session.within(file.write, MAX_PACK_BYTES),
                protocol_version=_PROTOCOL,
            )
            file.flush()
            require_bounded(file, len(sha) // 2)
            file.seek(0, os.SEEK_END)
        except BaseException:
            abort()
            raise
        commit()


def _ref_names(ref: str) -> list[str]:
    return [f"refs/heads/{ref}", f"refs/tags/{ref}"]


def _peeled(objects: Objects, sha: str, name: str) -> str:
    """The commit that a tag points to."""
    for _ in range(_TAGS_OF_TAGS):
        if objects.size(sha)[0] != TAG:
            return sha
        first = objects.read(sha, TAG, MAX_COMMIT_BYTES).partition(b"\n")[0]
        sha = first.removeprefix(b"object ").decode("ascii")
    raise ObjectError(f"{name} is a chain of more than {_TAGS_OF_TAGS} tags; let it name a commit")


_COMMIT: Final = re.compile("[0-9a-f]{40}|[0-9a-f]{64}")


def open_git_source(
    settings: Settings, clock: Callable[[], datetime], password: str | None = None, *, shadow: bool = False
) -> GitSource:
    """The source that the settings name; with ``shadow`` the candidate's branch or tag, in a mirror of its own.

    Raises:
        StartError: the settings are invalid.
    """
    setting = "shadow_ref" if shadow else "policies_ref"
    ref, subfolder = getattr(settings, setting), settings.policies_subfolder.strip("/")
    if not check_ref_format(Ref(f"refs/{ref}".encode())):
        raise StartError(f"{setting} {ref!r} is not a branch or tag; write main, or refs/tags/v1")
    if any(part in {"", ".", ".."} for part in subfolder.split("/")) and subfolder:
        raise StartError(f"policies_subfolder {subfolder!r} is not a folder of a repository; write a/b")
    place = parse_address(settings.policies_repository, password)
    folder = settings.data_dir / "shadow" if shadow else settings.data_dir
    mirror = Mirror(
        mirror_path(folder), place, ref, settings.policies_timeout_s, route_from_settings(settings)
    )
    return GitSource(place, mirror, ref, subfolder, clock, settings.policies_allowed_signers)


class GitSource:
    """The bundle source of a branch or tag. Blocks; belongs in a thread, one call at a time."""

    def __init__(
        self,
        place: RepositoryAddress,
        mirror: Mirror,
        ref: str,
        subfolder: str,
        clock: Callable[[], datetime],
        signers: Path | None = None,
    ) -> None:
        self._place, self._mirror, self._subfolder = place, mirror, subfolder.strip("/")
        self._clock, self._signers = clock, signers
        named = "\n".join((place.shown, ref, self._subfolder))
        self.identity: str | None = hashlib.sha256(named.encode()).hexdigest()
        self.origin = f"{place.shown} {ref}" + (f" {self._subfolder}/" if self._subfolder else "")
        self.accepted_commits = AcceptedCommits()
        self.head: str | None = None
        self._read: BundleFiles | None = None
        self._walked: tuple[str, str, bool] = ("", "", False)

    def read(self) -> BundleFiles:
        """The bundle at the head, if the head may follow the accepted commit.

        Raises:
            BundleError: it may not, or it contains a file that does not belong; see ``why``.
        """
        self.head = None
        self.head = head = self._mirror.newest()
        with self._mirror.objects() as objects:
            if head != self.accepted_commits.accepted:
                self._require_following(objects, head)
                self._require_signed(objects, head)
            return self._files(objects, head)

    def read_accepted(self) -> BundleFiles | None:
        """The bundle of the accepted commit, from the mirror; None without one.

        Raises:
            BundleError: the mirror does not hold it.
        """
        accepted = self.accepted_commits.accepted
        if accepted is None:
            return None
        with self._mirror.objects() as objects:
            return self._files(objects, accepted)

    def written(self, commits: Collection[str]) -> Mapping[str, CommitInfo]:
        """Author, message and time of these commits, for those in the mirror."""
        found = {}
        with self._mirror.objects() as objects:
            for name in filter(_COMMIT.fullmatch, commits):
                # The history may have been rewritten, or the mirror made again.
                with suppress(ObjectError):
                    found[name] = load_commit(objects, name).written
        return found

    def keep(self, commit: str) -> None:
        self._mirror.keep(commit)

    def _files(self, objects: Objects, commit: str) -> BundleFiles:
        if self._read is None or self._read.commit != commit:
            self._read = read_bundle_files(objects, commit, self._subfolder, self.origin)
        return self._read

    def _require_following(self, objects: Objects, head: str) -> None:
        accepted, allowed = self.accepted_commits.accepted, self.accepted_commits.allowed
        if accepted is None or head == allowed:
            return
        try:
            follows = self._descends(objects, head, accepted)
        except ObjectError as error:
            raise HeadError(self.origin, str(error), "force_push") from error
        if not follows:
            raise HeadError(
                self.origin,
                f"{head} does not descend from {accepted}, which is in force: the history was rewritten or rewound. "
                f'If that is meant: policy-service policies accept {head} --reason "..."',
                "force_push",
            )

    def _descends(self, objects: Objects, head: str, accepted: str) -> bool:
        """Cached, because a history never changes: a refused head is read again at every reload."""
        if self._walked[:2] != (head, accepted):
            self._walked = (head, accepted, is_descendant(objects, head, accepted))
        return self._walked[2]

    def _require_signed(self, objects: Objects, head: str) -> None:
        if self._signers is None:
            return
        try:
            signers = read_allowed_signers(self._signers)
            require_signed(objects.read(head, COMMIT, MAX_COMMIT_BYTES), signers, self._clock())
        except (SignatureError, AllowedSignersError, ObjectError) as error:
            raise HeadError(self.origin, f"the commit {head} is refused: {error}", "unsigned") from error
