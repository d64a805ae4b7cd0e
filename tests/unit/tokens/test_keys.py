"""Keys: created once, published before use, and readable only by the service."""

from contextlib import nullcontext
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from countersign.contract import KeySet, PrivateKey, VerificationError, open_token
from countersign.contract.jws import TYP_RECEIPT, TYP_RELEASE
from policy_service.errors import StartError
from policy_service.tokens import keys
from policy_service.tokens.keys import CURRENT, NEXT, NONCE_SECRET, PREVIOUS, read_keys, rotate_keys
from policy_service.tokens.signer import Signer
from tests.unit.tokens.claims import RECEIPT, RELEASE


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    keys.make_keys(tmp_path / "keys")
    return tmp_path / "keys"


def replace(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    path.chmod(0o600)


def kid(folder: Path, name: str) -> str:
    return PrivateKey.from_pem((folder / name).read_bytes()).public.kid


def published(folder: Path) -> set[str]:
    return {key.kid for key in read_keys(folder).published}


def later(folder: Path, seconds: float = 601) -> float:
    return (folder / NEXT).stat().st_mtime + seconds


def test_making_keys_makes_only_what_is_missing(folder: Path) -> None:
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    assert set(before) == {CURRENT, NEXT, NONCE_SECRET}
    assert keys.make_keys(folder) == []
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    (folder / NEXT).unlink()
    assert keys.make_keys(folder) == [NEXT]
    assert (folder / CURRENT).read_bytes() == before[CURRENT]


def test_a_ring_publishes_the_current_and_next_key_and_shows_no_secret(folder: Path) -> None:
    """The next one before it is ever used."""
    ring = read_keys(folder)
    assert ring.current.public.kid == kid(folder, CURRENT)
    assert published(folder) == {kid(folder, CURRENT), kid(folder, NEXT)}
    jwks = ring.published.to_jwks()
    assert len(KeySet.from_jwks(jwks)) == 2
    assert all(jwk["use"] == "sig" and jwk["alg"] == "Ed25519" and "d" not in jwk for jwk in jwks["keys"])
    assert ring.nonce_secret.hex() not in repr(ring) and repr(ring.nonce_secret) not in repr(ring)


def test_keys_of_two_deployments_differ(folder: Path, tmp_path: Path) -> None:
    keys.make_keys(tmp_path / "other")
    one, other = read_keys(folder), read_keys(tmp_path / "other")
    assert one.current.public.kid != other.current.public.kid
    assert one.nonce_secret != other.nonce_secret


@pytest.mark.parametrize("name", [CURRENT, NONCE_SECRET])
def test_a_missing_key_is_refused_with_the_command(folder: Path, name: str) -> None:
    (folder / name).unlink()
    with pytest.raises(StartError, match="policy-service init"):
        read_keys(folder)


PEM = PrivateKey.from_seed(bytes(32)).to_pem()


@pytest.mark.parametrize("name", [CURRENT, NEXT, PREVIOUS])
@pytest.mark.parametrize("content", [b"", b"not a key", PEM[:-40], b"-----BEGIN PRIVATE KEY-----\n"])
def test_a_damaged_key_is_refused_by_name_and_not_quoted(folder: Path, name: str, content: bytes) -> None:
    replace(folder / name, content)
    with pytest.raises(StartError, match=name) as caught:
        read_keys(folder)
    assert content.decode()[:20].strip() not in str(caught.value) or not content.strip()


def test_a_key_of_another_kind_or_twice_and_a_short_secret_are_refused(folder: Path) -> None:
    good = {name: (folder / name).read_bytes() for name in (CURRENT, NEXT, NONCE_SECRET)}
    form = (Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    pem = ec.generate_private_key(ec.SECP256R1()).private_bytes(*form)
    wrong = [(CURRENT, pem, CURRENT), (NEXT, good[CURRENT], NEXT), (NONCE_SECRET, b"", "too short")]
    for name, content, why in [*wrong, (NONCE_SECRET, b"short", "too short")]:
        replace(folder / name, content)
        with pytest.raises(StartError, match=why):
            read_keys(folder)
        replace(folder / name, good[name])


@pytest.mark.parametrize("name", [CURRENT, NEXT, NONCE_SECRET])
def test_a_key_others_can_read_is_refused(folder: Path, name: str) -> None:
    """K4."""
    (folder / name).chmod(0o644)
    with pytest.raises(StartError, match="chmod 600"):
        read_keys(folder)


def test_a_release_and_a_receipt_are_signed_by_the_current_key_each_under_its_type(folder: Path) -> None:
    """C9: the one is never the other."""
    ring = read_keys(folder)
    signer = Signer(ring)
    for token, typ, other, claims in (
        (signer.sign_release(RELEASE), TYP_RELEASE, TYP_RECEIPT, RELEASE),
        (signer.sign_receipt(RECEIPT), TYP_RECEIPT, TYP_RELEASE, RECEIPT),
    ):
        opened = open_token(token, typ=typ, key_for=signer.keys.get)
        assert (opened.kid, opened.claims) == (ring.current.public.kid, claims.to_claims())
        with pytest.raises(VerificationError):
            open_token(token, typ=other, key_for=signer.keys.get)


def test_a_rotation_signs_with_the_key_that_was_published_and_publishes_another(folder: Path) -> None:
    """And the one after it lets the first key go."""
    before, following = read_keys(folder), kid(folder, NEXT)
    token = Signer(before).sign_release(RELEASE)
    assert rotate_keys(folder, now=later(folder)) == following
    after = read_keys(folder)
    assert after.current.public.kid == following
    assert before.current.public.kid in published(folder), "what it signed a moment ago still verifies"
    open_token(token, typ=TYP_RELEASE, key_for=Signer(after).keys.get)
    assert len(published(folder)) == 3
    assert (folder / PREVIOUS).stat().st_mode & 0o777 == 0o600
    rotate_keys(folder, now=later(folder))
    assert before.current.public.kid not in published(folder)


def test_a_missing_or_unpublished_next_key_does_not_sign(folder: Path) -> None:
    before = published(folder)
    with pytest.raises(StartError, match="a moment ago"):
        rotate_keys(folder, now=later(folder, 599))
    assert published(folder) == before
    (folder / NEXT).unlink()
    before = published(folder)
    with pytest.raises(StartError, match=f"init.*rotate {keys.MIN_PUBLISHED_S / 60:.0f} minutes later"):
        rotate_keys(folder, now=10.0**12)
    assert published(folder) == before


def test_compromised_rotation_replaces_every_secret(folder: Path) -> None:
    rotate_keys(folder, now=later(folder))
    before, known = read_keys(folder), published(folder)
    assert len(known) == 3
    signs = rotate_keys(folder, now=later(folder, 0), compromised=True)
    after = read_keys(folder)
    assert after.current.public.kid == signs
    assert published(folder).isdisjoint(known), "the next key was in the same folder"
    assert len(published(folder)) == 2
    assert after.nonce_secret != before.nonce_secret
    assert {path.stat().st_mode & 0o777 for path in folder.iterdir()} == {0o600}
    assert not (folder / PREVIOUS).exists()


def test_compromised_rotation_needs_no_next_key(folder: Path) -> None:
    before = published(folder)
    (folder / NEXT).unlink()
    rotate_keys(folder, now=0.0, compromised=True)
    assert published(folder).isdisjoint(before)
    assert len(published(folder)) == 2


@pytest.mark.parametrize("done", range(4))
def test_an_emergency_rotation_can_repeat(folder: Path, done: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rotate_keys(folder, now=later(folder))
    known, secret = published(folder), read_keys(folder).nonce_secret
    made, left = keys.replace_secret, iter(range(done))

    def cut(path: Path, content: bytes) -> None:
        if next(left, None) is None:
            raise OSError("the power went")
        made(path, content)

    monkeypatch.setattr(keys, "replace_secret", cut)
    with pytest.raises(OSError, match="power") if done < 3 else nullcontext():
        rotate_keys(folder, now=0.0, compromised=True)
    monkeypatch.undo()
    read_keys(folder)
    rotate_keys(folder, now=0.0, compromised=True)
    assert published(folder).isdisjoint(known)
    assert read_keys(folder).nonce_secret != secret


@pytest.mark.parametrize("step", ["previous", "current", "next"])
def test_a_cut_rotation_is_repeatable(folder: Path, step: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The last signing key stays published, and the command can be repeated."""
    signed = read_keys(folder).current.public.kid
    following = PrivateKey.from_pem((folder / NEXT).read_bytes()).public.kid
    cuts = {"previous": "replace_secret", "current": "sync_folder", "next": "create_secret"}
    made = {name: getattr(keys, name) for name in cuts.values()}

    def cut(*args: object) -> None:
        if step == "previous":
            made["replace_secret"](*args)
        raise OSError("the power went")

    monkeypatch.setattr(keys, cuts[step], cut)
    with pytest.raises(OSError, match="power"):
        rotate_keys(folder, now=later(folder))
    monkeypatch.undo()
    assert signed in published(folder)
    keys.make_keys(folder)
    assert read_keys(folder).current.public.kid == (signed if step == "previous" else following)
    rotate_keys(folder, now=later(folder))
    assert signed in published(folder) or step != "previous"
