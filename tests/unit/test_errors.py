"""Every code has one status, and no error leaves under another."""

import pytest

from countersign.contract import ErrorCode
from policy_service import errors
from policy_service.errors import HTTP_STATUS, ConflictError, RequestError, ServerError, ServiceError

NAMES = "Conflict Forbidden Internal InvalidRequest NotFound Start StorageUnavailable Unauthenticated".split()
LEAVES = [getattr(errors, f"{name}Error") for name in NAMES]


def test_every_code_has_a_status_and_every_status_is_an_error() -> None:
    assert set(HTTP_STATUS) == set(ErrorCode)
    assert all(400 <= status < 600 for status in HTTP_STATUS.values())


@pytest.mark.parametrize("code", list(ErrorCode))
def test_every_code_can_be_raised_by_one_of_the_two_families(code: ErrorCode) -> None:
    family = RequestError if HTTP_STATUS[code] < 500 else ServerError
    assert family("x", code=code).status == HTTP_STATUS[code]
    other = ServerError if family is RequestError else RequestError
    with pytest.raises(ValueError, match=code.value):
        other("x", code=code)


@pytest.mark.parametrize("kind", LEAVES)
def test_every_class_has_a_code_of_its_own(kind: type[ServiceError]) -> None:
    assert kind("x").status in kind.statuses


NOT_ITS_OWN = [
    *((errors.ConflictError, "internal"), (errors.NotFoundError, "forbidden"), (RequestError, "made_up")),
    *((errors.StorageUnavailableError, "not_found"), (errors.UnauthenticatedError, "not_eligible")),
    (errors.InvalidRequestError, "not_ready"),
]


@pytest.mark.parametrize(("kind", "code"), NOT_ITS_OWN)
def test_a_class_refuses_a_code_that_is_not_its_own(kind: type[ServiceError], code: str) -> None:
    with pytest.raises(ValueError, match=code):
        kind("x", code=code)


def test_a_problem_has_a_code_and_a_sentence() -> None:
    error = ConflictError("revision 2 was replaced; submit again", code=ErrorCode.SUPERSEDED, rev=3)
    kind = {"type": "urn:countersign:problem:superseded", "title": "superseded", "code": "superseded"}
    output = kind | {"status": 409, "detail": "revision 2 was replaced; submit again", "rev": 3}
    assert error.to_problem("/v1/transactions/abc") == output | {"instance": "/v1/transactions/abc"}
    assert (error.to_problem(), str(error)) == (output, error.detail)


@pytest.mark.parametrize("member", ["type", "title", "status", "instance"])
def test_extras_cannot_replace_a_members_of_the_problem(member: str) -> None:
    with pytest.raises(ValueError, match=member):
        ConflictError("x", **{member: "y"})
