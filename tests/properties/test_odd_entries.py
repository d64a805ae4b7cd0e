"""Keys listed by others: every valid entry counts, next to any invalid ones, and no other does."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from joserfc.jwk import ECKey, OKPKey, RSAKey

from policy_service.identity.issuer_keys import parse_jwks

SOUND_KEYS: list[dict[str, Any]] = [
    dict(key.as_dict(private=False))
    for key in (RSAKey.generate_key(2048), ECKey.generate_key("P-256"), OKPKey.generate_key("Ed25519"))
]
MEMBERS = "kty use key_ops alg kid n e crv x y d p k x5c x5u ext".split()
WORDS = "RSA EC OKP oct AKP sig enc RS256 ES256 HS256 none P-256 X25519 AQAB".split()

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20) | st.sampled_from(WORDS),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
# a key that is almost sound: some members of a sound one changed or dropped, or no key at all
changes = st.dictionaries(st.sampled_from(MEMBERS), json_values, max_size=3)
dropped = st.sets(st.sampled_from(MEMBERS), max_size=2)
changed_keys = st.builds(lambda key, more: key | more, st.sampled_from(SOUND_KEYS), changes)
odd_keys = json_values | st.builds(
    lambda key, gone: {name: value for name, value in key.items() if name not in gone}, changed_keys, dropped
)


def public_part(key: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(key.get(name) for name in ("kty", "crv", "n", "e", "x", "y"))


@given(before=st.lists(odd_keys, max_size=4), after=st.lists(odd_keys, max_size=4))
def test_invalid_keys_never_hide_a_valid_one_and_are_reported(before: list[Any], after: list[Any]) -> None:
    sound = [key | {"kid": "shared"} for key in SOUND_KEYS]
    listed = [*before, *sound, *after]
    published = parse_jwks({"keys": listed})
    assert len(published.usable) + len(published.refused) == len(listed)
    shared = [public_part(dict(key.as_dict())) for key in published.usable if key.kid == "shared"]
    assert shared[: len(sound)] == [public_part(key) for key in sound]
    for entry in published.refused:
        at = int(entry.pointer.removeprefix("/keys/"))
        assert entry.why and 0 <= at < len(listed)
        assert not len(before) <= at < len(before) + len(sound)


@given(listed=st.lists(odd_keys, max_size=6))
def test_unsuitable_keys_are_not_used(listed: list[Any]) -> None:
    refused = {int(entry.pointer.removeprefix("/keys/")) for entry in parse_jwks({"keys": listed}).refused}
    for at in set(range(len(listed))) - refused:
        entry = listed[at]
        assert entry["kty"] in {"RSA", "EC", "OKP"}
        assert entry.get("use") in {None, "sig", "jwt-svid"}
        assert entry.get("key_ops") is None or "verify" in entry["key_ops"]
        assert all(entry.get(name) is None for name in ("d", "p", "k"))
        assert entry.get("alg") not in {"none", "HS256", "enc"}
