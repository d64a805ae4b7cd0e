"""Which names of attempts there are, and that the SDK makes no others."""

from __future__ import annotations

from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from countersign.commit.unwinding import _ATTEMPT_BYTES
from countersign.contract.keys import encode_base64url
from countersign.contract.wire import AttemptId

_IDS: TypeAdapter[str] = TypeAdapter(AttemptId)


@given(st.binary(min_size=_ATTEMPT_BYTES, max_size=_ATTEMPT_BYTES))
def test_what_the_sdk_makes_is_one(random: bytes) -> None:
    assert _IDS.validate_python(encode_base64url(random))


@given(st.text(max_size=250))
def test_one_is_the_same_in_a_path(text: str) -> None:
    try:
        name = _IDS.validate_python(text)
    except ValidationError:
        return
    assert quote(name, safe="") == name
    assert name not in {".", ".."} and 1 <= len(name) <= 200


@pytest.mark.parametrize("name", [".", "..", "a/b", "a\n", "", "a" * 201, "\xe9"])
def test_no_other_is(name: str) -> None:
    with pytest.raises(ValidationError):
        _IDS.validate_python(name)
