"""Following a branch or tag: which of its commits may come into force.

Rules kept here: a new head descends from the commit in force, or an operator has said that it may follow all the same;
where signers are named, the head was signed by one of them. Only the head has to be: it names its tree and its whole
history by hash, so whoever signs it signs exactly the bytes that come into force, and a forge's merge button needs no
key of its own.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Final

from dulwich.refs import Ref, check_ref_format

from policy_service.errors import StartError
from policy_service.http_clients import route_of
from policy_service.pap.git.commits import commit_at, files_at
from policy_service.pap.git.history import descends
from policy_service.pap.git.mirror import Mirror, mirror_path
from policy_service.pap.git.objects import COMMIT, MAX_COMMIT_BYTES, ObjectError, Objects
from policy_service.pap.git.remotes import Place, place_of
from policy_service.pap.git.signatures import SignatureError
from policy_service.pap.git.signers import SignersError, read_signers, require_signed
from policy_service.pap.problems import HeadError
from policy_service.pap.source import BundleFiles, Standing, Written
from policy_service.settings import Settings

_COMMIT: Final = re.compile("[0-9a-f]{40}|[0-9a-f]{64}")


def follow_repository(
    settings: Settings, clock: Callable[[], datetime], password: str | None = None, *, shadow: bool = False
) -> GitSource:
    """The source the settings name; with ``shadow`` the candidate's branch or tag, in a copy of its own.

    Raises:
        StartError: they name none that can be followed.
    """
    setting = "shadow_ref" if shadow else "policies_ref"
    ref, subfolder = getattr(settings, setting), settings.policies_subfolder.strip("/")
    if not check_ref_format(Ref(f"refs/{ref}".encode())):
        raise StartError(f"{setting} {ref!r} is no branch or tag; write main, or refs/tags/v1")
    if any(part in {"", ".", ".."} for part in subfolder.split("/")) and subfolder:
        raise StartError(f"policies_subfolder {subfolder!r} is no folder of a repository; write a/b")
    place = place_of(settings.policies_repository, password)
    folder = settings.data_dir / "shadow" if shadow else settings.data_dir
    mirror = Mirror(mirror_path(folder), place, ref, settings.policies_timeout_s, route_of(settings))
    return GitSource(place, mirror, ref, subfolder, clock, settings.policies_allowed_signers)


class GitSource:
    """The bundles of a branch or tag. Blocks; belongs in a thread, one call at a time."""

    def __init__(
        self,
        place: Place,
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
        self.standing = Standing()
        self.head: str | None = None
        self._read: BundleFiles | None = None
        self._walked: tuple[str, str, bool] = ("", "", False)

    def read(self) -> BundleFiles:
        """The bundle at the head, where the head may follow what stands.

        Raises:
            BundleError: it may not, or it holds what does not belong; ``why`` tells which.
        """
        self.head = None
        self.head = head = self._mirror.newest()
        with self._mirror.objects() as objects:
            if head != self.standing.accepted:
                self._require_following(objects, head)
                self._require_signed(objects, head)
            return self._files(objects, head)

    def read_accepted(self) -> BundleFiles | None:
        """The bundle that stands, from the copy; None when nothing stands yet.

        Raises:
            BundleError: the copy does not hold it.
        """
        accepted = self.standing.accepted
        if accepted is None:
            return None
        with self._mirror.objects() as objects:
            return self._files(objects, accepted)

    def written(self, commits: Collection[str]) -> Mapping[str, Written]:
        """What commits say of themselves, those of them that the copy holds."""
        found = {}
        with self._mirror.objects() as objects:
            for name in filter(_COMMIT.fullmatch, commits):
                # of a history that was rewritten, or in a copy that was made anew
                with suppress(ObjectError):
                    found[name] = commit_at(objects, name).written
        return found

    def keep(self, commit: str) -> None:
        """Let the copy remember it."""
        self._mirror.keep(commit)

    def _files(self, objects: Objects, commit: str) -> BundleFiles:
        if self._read is None or self._read.commit != commit:
            self._read = files_at(objects, commit, self._subfolder, self.origin)
        return self._read

    def _require_following(self, objects: Objects, head: str) -> None:
        accepted, allowed = self.standing.accepted, self.standing.allowed
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
        """A history never changes: a head that is refused at every look is walked back from once."""
        if self._walked[:2] != (head, accepted):
            self._walked = (head, accepted, descends(objects, head, accepted))
        return self._walked[2]

    def _require_signed(self, objects: Objects, head: str) -> None:
        if self._signers is None:
            return
        try:
            signers = read_signers(self._signers)
            require_signed(objects.read(head, COMMIT, MAX_COMMIT_BYTES), signers, self._clock())
        except (SignatureError, SignersError, ObjectError) as error:
            raise HeadError(self.origin, f"the commit {head} is not taken: {error}", "unsigned") from error
