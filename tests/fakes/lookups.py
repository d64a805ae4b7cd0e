"""A host on loopback that facts and groups are looked up at, honest by default; with TLS where asked for.

`Host` answers what its `answer` makes of a request; a fault named in `how` replaces it. `Scim` is a small
directory (RFC 7643, 7644) over the same host: groups, users, filters and pages as the vendors have them.
"""

from __future__ import annotations

import datetime
import gzip
import json
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from ipaddress import ip_address
from pathlib import Path
from typing import Any, Final
from urllib.parse import parse_qs, urlsplit

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from tests.fakes.http_server import Loopback, Quiet

NAME: Final = "facts.example"


@dataclass
class Asked:
    """One request as it came."""

    method: str
    path: str
    headers: dict[str, str]
    body: Any


Answering = Callable[[Asked], tuple[int, Any]]


def _nothing(asked: Asked) -> tuple[int, Any]:
    return 404, {}


@dataclass
class Host(Loopback):
    """A server. `how` is the fault it shows; `asked` what it was asked."""

    answer: Answering = _nothing
    certificate: Path | None = None  # with its key in one file; without one it speaks plain http
    how: str | None = None
    asked: list[Asked] = field(default_factory=list)
    at_once: int = 0
    most_at_once: int = 0

    def __post_init__(self) -> None:
        super().__init__(_Handler, self.certificate)
        self.began = threading.Event()
        self._counting = threading.Lock()

    def counted(self, by: int) -> None:
        """One more, or one less, is being answered."""
        with self._counting:
            self.at_once += by
            self.most_at_once = max(self.most_at_once, self.at_once)


_JSON = "application/json; charset=utf-8"
_WHOLE: dict[str, tuple[int, str, bytes]] = {
    "500": (500, _JSON, b'{"state": "open"}'),
    "401": (401, _JSON, b"{}"),
    "wrong type": (200, "text/html", b'{"state": "open"}'),
    "no type": (200, "", b'{"state": "open"}'),
    "no JSON": (200, _JSON, b"<html>"),
    "duplicate keys": (200, _JSON, b'{"state": "closed", "state": "open"}'),
    "a list": (200, _JSON, b'[{"state": "open"}]'),
    "too deep": (200, _JSON, b'{"state": ' + b"[" * 9 + b"]" * 9 + b"}"),
    "reserved key": (200, _JSON, b'{"__entity": {"type": "Role", "id": "admin"}}'),
    "huge": (200, _JSON, b'{"state": "' + b"o" * 70_000 + b'"}'),
}


class _Handler(Quiet):
    at: Host

    def respond(self) -> None:
        raw = self.body()
        headers = {name.lower(): value for name, value in self.headers.items()}
        asked = Asked(self.command, self.path, headers, json.loads(raw) if raw else None)
        self.at.asked.append(asked)
        self.at.began.set()
        self.at.counted(1)
        try:
            self._speak(asked)
        finally:
            self.at.counted(-1)

    def _speak(self, asked: Asked) -> None:
        if self.at.how in _WHOLE:
            self.send(*_WHOLE[self.at.how])
        elif self.at.how in _ODD:
            _ODD[self.at.how](self)
        else:
            if self.at.how == "a while":
                self.at.lifted.wait(0.2)
            status, answer = self.at.answer(asked)
            self.send(status, _JSON, json.dumps(answer).encode())

    def send(self, status: int, kind: str, body: bytes, more: dict[str, str] | None = None) -> None:
        self.answer(status, body, ({"Content-Type": kind} if kind else {}) | (more or {}))


def _redirect(it: _Handler) -> None:
    it.send(302, _JSON, b"{}", {"Location": f"{it.at.url}/elsewhere"})


def _drips(it: _Handler) -> None:
    it.head(200, {"Content-Type": _JSON, "Content-Length": "1000"})
    it.drip(b" ")


def _truncated(it: _Handler) -> None:
    it.head(200, {"Content-Type": _JSON, "Content-Length": "1000"})
    it.wfile.write(b'{"state": "open"')
    it.close_connection = True


def _compressed(it: _Handler) -> None:
    it.send(200, _JSON, gzip.compress(b'{"state": "open"}'), {"Content-Encoding": "gzip"})


_ODD: dict[str, Callable[[_Handler], None]] = {"slow": _Handler.hang, "endless": _Handler.pour}
_ODD["drips"] = _drips
_ODD |= {"redirect": _redirect, "truncated": _truncated, "compressed": _compressed}


def certificate(folder: Path, *names: str) -> Path:
    """A certificate of its own authority for these names and addresses, with its key, in one file."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "a test")])
    now = datetime.datetime.now(datetime.UTC)
    built = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([_general(each) for each in names]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    plain = serialization.NoEncryption()
    form = serialization.PrivateFormat.TraditionalOpenSSL
    private = key.private_bytes(serialization.Encoding.PEM, form, plain)
    file = folder / f"{'-'.join(names)}.pem"
    file.write_bytes(private + built.public_bytes(serialization.Encoding.PEM))
    return file


def _general(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ip_address(name))
    except ValueError:
        return x509.DNSName(name)


@dataclass
class Scim:
    """A directory. `groups` are members by displayName; `users` what it says of each user by id."""

    groups: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    users: dict[str, dict[str, Any]] = field(default_factory=dict)
    per_page: int = 100
    says: dict[str, Any] = field(default_factory=dict)  # laid over each list
    keeps: int | None = None  # how many resources of a list are really sent
    twins: bool = False  # each group is there twice

    def put(self, group: str, *ids: str) -> None:
        """A group has these members from now on."""
        self.groups[group] = [{"value": one, "type": "User", "display": one.title()} for one in ids]

    def __call__(self, asked: Asked) -> tuple[int, Any]:
        target = urlsplit(asked.path)
        query = {name: values[0] for name, values in parse_qs(target.query).items()}
        if target.path == "/scim/Groups":
            return 200, self._list(self._groups(query["filter"]), query)
        if target.path == "/scim/Users":
            return 200, self._list([{"id": one, **said} for one, said in self.users.items()], query)
        return 404, {"schemas": ["urn:ietf:params:scim:api:messages:2.0:Error"], "status": "404"}

    def _groups(self, asked: str) -> list[dict[str, Any]]:
        name = json.loads(asked.removeprefix("displayName eq "))
        schema = "urn:ietf:params:scim:schemas:core:2.0:Group"
        found = [  # displayName is compared without case (RFC 7643 section 4.2), so others may come along
            {"schemas": [schema], "id": f"g-{title}", "displayName": title, "members": members}
            for title, members in self.groups.items()
            if title.casefold() == name.casefold()
        ]
        return found * 2 if self.twins else found

    def _list(self, resources: list[dict[str, Any]], query: dict[str, str]) -> dict[str, Any]:
        start, count = int(query["startIndex"]), min(int(query["count"]), self.per_page)
        page = resources[start - 1 : start - 1 + count]
        if self.keeps is not None:
            page = page[: max(0, self.keeps - start + 1)]
        counts = {"totalResults": len(resources), "startIndex": start, "itemsPerPage": len(page)}
        schemas = ["urn:ietf:params:scim:api:messages:2.0:ListResponse"]
        return {"schemas": schemas, "Resources": page, **counts, **self.says}
