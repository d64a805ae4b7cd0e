"""Static files: read once, named by digest, served from memory.

Requests never reach the file system, so no path can leave the folder. A URL with an old digest is not found,
so a page and its files always match, and browsers may cache them forever.
"""

import hashlib
from base64 import b64encode
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

_MEDIA_TYPES = {
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
_PACKAGED = Path(__file__).parent / "assets"  # the repository's `web` folder in a wheel
_CHECKED_OUT = Path(__file__).parents[3] / "web"


@dataclass(frozen=True, slots=True)
class Asset:
    """One file with its digest."""

    name: str
    body: bytes
    media_type: str
    digest: str
    integrity: str

    @property
    def url(self) -> str:
        return f"/static/{self.digest}/{self.name}"


def web_folder() -> Path:
    """The folder with `templates` and `static`."""
    for folder in (_PACKAGED, _CHECKED_OUT):
        if (folder / "templates").is_dir():
            return folder
    raise FileNotFoundError(
        f"no web templates in {str(_PACKAGED)!r} or {str(_CHECKED_OUT)!r}: reinstall the service"
    )


def load_assets(folder: Path) -> Mapping[str, Asset]:
    """Every file of a known type below `folder`, by relative name."""
    files = (path for path in sorted(folder.rglob("*")) if path.suffix in _MEDIA_TYPES)
    return {asset.name: asset for asset in (_load(path, folder) for path in files)}


def _load(path: Path, folder: Path) -> Asset:
    body = path.read_bytes()
    digest = hashlib.sha256(body)
    return Asset(
        name=path.relative_to(folder).as_posix(),
        body=body,
        media_type=_MEDIA_TYPES[path.suffix],
        digest=digest.hexdigest()[:16],
        integrity="sha256-" + b64encode(digest.digest()).decode("ascii"),
    )
