"""Webhook signatures, against the vectors of the standard and a verifier written from it."""

import base64
import pickle
from pathlib import Path

import pytest

from policy_service.errors import StartError
from policy_service.tokens.keys import WebhookKey, make_webhook_key, read_webhook_keys, sign_webhook
from tests.fakes.receivers import verify

# The published vectors of Standard Webhooks, symmetric and asymmetric.
ID, STAMP, BODY = "msg_p5jXN8AQM9LWM0D4loKWxJek", 1614265330, b'{"test": 2432232314}'
SHARED = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
SHARED_SAYS = "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="
OWN = "whsk_VEVTVFNJR05JTkdLRVlET05PVFVTRVRISVNGT1JBTlk="
OWN_SAYS = "v1a,tQ9V2XOqn7jL/DQenEFpqIugdBVtiMmER5mhSkXBNwM0mkATuDe6KYYUuxqtaiHeYGb7KaaBRdM5WqyeFiL8Ag=="


@pytest.mark.parametrize(("line", "says"), [(SHARED, SHARED_SAYS), (OWN, OWN_SAYS)], ids=["v1", "v1a"])
def test_the_vectors_of_the_standard(line: str, says: str) -> None:
    headers = sign_webhook([WebhookKey(line)], ID, STAMP, BODY)
    assert headers == {"webhook-id": ID, "webhook-timestamp": str(STAMP), "webhook-signature": says}


def encoded(prefix: str, size: int, byte: bytes = b"s") -> str:
    return prefix + base64.b64encode(byte * size).decode()


def test_two_keys_sign_side_by_side_and_each_verifies() -> None:
    new, own = encoded("whsec_", 32, b"n"), WebhookKey(OWN)
    headers = sign_webhook([WebhookKey(SHARED), WebhookKey(new), own], ID, STAMP, BODY)
    assert own.public is not None
    for key in (SHARED, new, own.public):
        verify(key, headers, BODY, now=STAMP)


# Without a prefix, the public half, of another size, not base64, and two lines.
BAD = [
    "",
    encoded("", 32),
    encoded("whpk_", 32),
    encoded("whsec_", 23),
    encoded("whsec_", 65),
    encoded("whsk_", 64),
]
BAD += ["whsec_canary!canary!canary!canary!canary!", f"{SHARED}\n{SHARED}"]


@pytest.mark.parametrize("line", BAD)
def test_what_is_no_secret_is_refused_and_not_quoted(line: str, tmp_path: Path) -> None:
    file = tmp_path / "hook.secret"
    file.write_text(line)
    file.chmod(0o600)
    with pytest.raises(StartError, match="holds no secret of a webhook") as refused:
        read_webhook_keys("billing", [file])
    assert not line or line.rpartition("_")[2] not in str(refused.value)


def test_a_secret_that_others_can_read_or_that_is_missing_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "hook.secret"
    file.write_text(SHARED)
    file.chmod(0o640)
    with pytest.raises(StartError, match="can be read by others"):
        read_webhook_keys("billing", [file])
    with pytest.raises(StartError, match=r"policy-service webhooks secret .*none makes one"):
        read_webhook_keys("billing", [tmp_path / "none"])


@pytest.mark.parametrize("own", [False, True])
def test_a_fresh_secret_signs_what_verifies_and_is_never_overwritten(own: bool, tmp_path: Path) -> None:
    file = tmp_path / "hook.secret"
    made = make_webhook_key(file, own=own)
    assert file.stat().st_mode & 0o777 == 0o600
    (read,) = read_webhook_keys("billing", [file])
    headers = sign_webhook([read], ID, STAMP, BODY)
    verify(made.public or file.read_text().strip(), headers, BODY, now=STAMP)
    with pytest.raises(FileExistsError):
        make_webhook_key(file, own=own)


@pytest.mark.parametrize("line", [SHARED, OWN])
def test_nothing_printed_of_a_key_is_its_secret(line: str) -> None:
    key = WebhookKey(line)
    assert line.partition("_")[2] not in f"{key!r} {key}"
    with pytest.raises(TypeError):
        pickle.dumps(key)
