"""Requests and answers: strict on the way in, the same on the way out and back."""

import json
from datetime import UTC, datetime, timedelta, timezone
from typing import Any
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, TypeAdapter, ValidationError

from countersign.commit.compensation import _ATTEMPT_BYTES
from countersign.contract import (
    EffectState,
    ErrorCode,
    Outcome,
    Resource,
    TaskKind,
    TxnState,
    Verdict,
    WireError,
    wire,
)
from countersign.contract.keys import encode_base64url
from countersign.contract.wire import AttemptId, WireModel, dump, parse
from countersign.contract.wire.base import format_instant
from tests.unit.contract.reading import code_of, read

HEX = "ab" * 32
AT = datetime(2026, 11, 21, 22, 0, 0, 123456, tzinfo=UTC)


STAGED: dict[str, Any] = {"tool": "refund", "tool_digest": HEX, "args": {"x": 1}}
SUBMIT: dict[str, Any] = {"run_key": "r", "effects": [STAGED]}


DIGESTS: dict[str, Any] = {"tool_digest": HEX, "args_digest": HEX, "effect_digest": HEX, "call_key": HEX}
REASON = wire.Reason(code="no_permit", text="no rule permits it", advice="write a permit")
NEED = wire.Need(gates=("large",), groups=("finance",), quorum=2, have=1)
OF_BUNDLE: dict[str, Any] = {"bundle": HEX, "commit": "abc", "gates": ("large",), "reasons": (REASON,)}
DECISION = wire.DecisionView(decision_id="d1", outcome=Verdict.REVIEW, **OF_BUNDLE)
EFFECT = wire.EffectView(
    **DIGESTS | {"effect_id": HEX, "seq": 1, "tool": "refund", "state": EffectState.REVIEW},
    resource=Resource("Account", "acc-17"),
    args={"a": None, "b": [1, {"c": None}]},
    decision=DECISION,
    review=wire.ReviewSummary(
        review_id="r1", state="open", url="https://a.example", answer_by=AT, needs=(NEED,)
    ),
    outcome=wire.OutcomeView(outcome=Outcome.UNKNOWN, at=AT),
    compensation=wire.CompensationRef(effect_id=HEX, state=EffectState.RELEASED),
)
WHOSE: dict[str, Any] = {"agent": "bot", "run_key": "r", "txn_digest": HEX, "aud": "bot", "submitted_at": AT}
TRANSACTION = wire.TransactionView(txn=HEX, rev=1, state=TxnState.REVIEW, **WHOSE, effects=(EFFECT,))


def body(value: object) -> bytes:
    return json.dumps(value).encode()


def test_a_submission_is_read_as_it_was_meant() -> None:
    request = parse(wire.SubmitRequest, body({**SUBMIT, "claimed": {"purpose": "tidy up"}}))
    (effect,) = request.effects
    assert (effect.args, effect.n, effect.call_key, effect.resource) == ({"x": 1}, 0, None, None)
    assert request.claimed is not None and request.claimed.purpose == "tidy up"
    raw = body(SUBMIT).replace(b'{"x": 1}', b'{"b": 1.0, "a": -0.0, "z": null}')
    (effect,) = parse(wire.SubmitRequest, raw).effects
    assert repr(effect.args) == "{'a': 0, 'b': 1, 'z': None}", "args arrive as their canonical value"


TASK: dict[str, Any] = {"task_id": "t", "kind": TaskKind.UNKNOWN, "text": "x", "state": "open", "rev": 1}
TASK |= {"opened_at": AT, "url": "http://127.0.0.1/tasks/t", "txn": HEX, "effect_id": HEX}


FINDING = wire.HealthFinding(check="log", stops=True, wrong="w", since=AT, do="d")
ROW = wire.AuditRow(index=0, at=AT, kind="k", actor={"a": 1}, body={"b": None})
ANSWERS = [
    TRANSACTION,
    wire.RedemptionView(attempt_id="a", redeemed=False, transaction=TRANSACTION),
    wire.CompensationView(effect=EFFECT, release="a.b.c"),
    wire.EvaluationView(effects=(wire.EvaluatedEffect(tool="t", decision=DECISION),)),
    wire.TaskPage(tasks=(wire.TaskView(**TASK, agent="a", tool="t"),)),
    wire.AuditPage(rows=(ROW,), next=0),
    wire.ReviewPageView(reviews=()),
    wire.Health(status="down", findings=(FINDING,)),
    wire.Event(index=7, kind="vote_recorded", txn=HEX),
]


@pytest.mark.parametrize("answer", ANSWERS, ids=lambda answer: type(answer).__name__)
def test_an_answer_survives_the_way_out_and_back(answer: WireModel) -> None:
    assert parse(type(answer), dump(answer)) == answer


def test_absent_is_left_out_but_null_in_args_stays() -> None:
    written = json.loads(dump(TRANSACTION))
    assert "receipt" not in written
    assert written["effects"][0]["args"] == {"a": None, "b": [1, {"c": None}]}
    request = wire.RedeemRequest(tokens=["a.b.c"], attempt_id="a")  # type: ignore[arg-type]
    assert request.tokens == ("a.b.c",), "a list may be given where a tuple is kept"


INVALID = "invalid_request"
WRONG_SUBMISSIONS: list[tuple[dict[str, Any], str, str]] = [
    ({"colour": 1}, "unknown_field", "/colour"),
    ({"claimed": {"admin": True}}, "unknown_field", "/claimed/admin"),
    ({"attempt_id": ""}, INVALID, "/attempt_id"),
    *(({"run_key": value}, INVALID, "/run_key") for value in ("", "x" * 201, 7, None)),
    *(({"independent": value}, INVALID, "/independent") for value in ("true", 1)),
    *(({"effects": value}, INVALID, "/effects") for value in ([], [STAGED] * 101, {})),
    ({"independent": True, "effects": [STAGED] * 2}, INVALID, ""),
]


@pytest.mark.parametrize(("changed", "code", "pointer"), WRONG_SUBMISSIONS)
def test_a_wrong_submission_is_refused_by_place(changed: dict[str, Any], code: str, pointer: str) -> None:
    with pytest.raises(WireError, match="the body is not a SubmitRequest") as refused:
        parse(wire.SubmitRequest, body({**SUBMIT, **changed}))
    assert (refused.value.code, [place for place, _ in refused.value.problems]) == (code, [pointer])


WRONG_EFFECTS: list[tuple[dict[str, Any], str]] = [
    *(({"tool_digest": digest}, INVALID) for digest in (HEX.upper(), HEX + "\n")),
    *(({"args": args}, INVALID) for args in ([1], None)),
    *(({"n": n}, INVALID) for n in (-1, "0", True)),
    *(({"resource": resource}, INVALID) for resource in ({"type": "A"}, {"type": "A", "id": ""})),
    ({"call_key": "x"}, INVALID),
    ({"resource": {"type": "A", "id": "b", "owner": 1}}, "unknown_field"),
    *(({"approved": True}, "unknown_field"), ({"seq": 1}, "unknown_field")),
]


@pytest.mark.parametrize(("changed", "code"), WRONG_EFFECTS)
def test_a_wrong_effect_is_refused(changed: dict[str, Any], code: str) -> None:
    with pytest.raises(WireError) as refused:
        parse(wire.SubmitRequest, body({**SUBMIT, "effects": [{**STAGED, **changed}]}))
    assert refused.value.code == code
    assert all(place.startswith("/effects/0/") for place, _ in refused.value.problems)


HOSTILE: list[Any] = [
    (b'{"run_key":"a","run_key":"b","effects":[]}', "duplicate_key"),
    (b'{"effects":[{"args":{"__entity":{"type":"User","id":"root"}}}]}', "reserved_key"),
    *((b"", "not_json"), (b"[" * 100_000, "too_deep"), (b" " * 1_048_577, "too_large")),
]


@pytest.mark.parametrize(("raw", "code"), HOSTILE)
def test_admission_comes_before_the_model(raw: bytes, code: str) -> None:
    assert code_of(parse, wire.SubmitRequest, raw) == code


@pytest.mark.parametrize("value", [None, [], "x", 1])
def test_a_body_is_an_object(value: object) -> None:
    with pytest.raises(WireError):
        parse(wire.ReleaseRequest, body(value))


WRONG_TOKENS = ([], ["not a token"], ["a.b.c" + "c" * 8192])
VOTE = {"verdict": "approve", "rev": 1, "effect_digest": HEX}
WRONG_REQUESTS: list[Any] = [
    *((wire.RedeemRequest, {"tokens": tokens, "attempt_id": "a"}) for tokens in WRONG_TOKENS),
    (wire.RenewRequest, {"effect_ids": []}),
    (wire.ReleaseRequest, {"rev": 0}),
    (wire.ReportRequest, {"attempt_id": "a", "outcomes": [{"effect_id": HEX, "outcome": "done"}]}),
    *(
        (wire.VoteRequest, VOTE | {"verdict": verdict, "txn_digest": HEX})
        for verdict in ("maybe", "approve\n")
    ),
    (wire.VoteRequest, VOTE),
    (wire.CompensateRequest, {"effect_id": "x"}),
    (wire.EvaluationRequest, {**SUBMIT, "attempt_id": "a"}),
]


@pytest.mark.parametrize(("model", "value"), WRONG_REQUESTS)
def test_other_wrong_requests_are_refused(model: type[WireModel], value: dict[str, Any]) -> None:
    with pytest.raises(WireError):
        parse(model, body(value))


DAY = "2026-11-21"


@pytest.mark.parametrize(("fraction", "microseconds"), [("", 0), (".5", 500_000), (".123456", 123_456)])
def test_times_are_utc_with_z(fraction: str, microseconds: int) -> None:
    at = parse(wire.OutcomeView, body({"outcome": "fired", "at": f"{DAY}T22:00:00{fraction}Z"})).at
    assert at == AT.replace(microsecond=microseconds)


NO_TIMES: list[object] = [
    *(f"{DAY}{rest}" for rest in ("T22:00:00+00:00", "T22:00:00", " 22:00:00Z", "T22:00:00z")),
    *(f"{DAY}{rest}" for rest in ("T22:00:00.1234567Z", "T24:00:00Z", "")),
    *("2026-02-30T22:00:00Z", "２026-11-21T22:00:00Z", "now", 1_800_000_000, None),
]


@pytest.mark.parametrize("at", NO_TIMES)
def test_any_other_time_is_refused(at: object) -> None:
    with pytest.raises(WireError):
        parse(wire.OutcomeView, body({"outcome": "fired", "at": at}))


def test_a_time_of_another_zone_is_written_in_utc_and_a_naive_one_refused() -> None:
    there = AT.astimezone(timezone(timedelta(hours=5, minutes=30)))
    assert b'"at":"2026-11-21T22:00:00.123456Z"' in dump(wire.OutcomeView(outcome=Outcome.FIRED, at=there))
    with pytest.raises(ValidationError, match="timezone"):
        wire.OutcomeView(outcome=Outcome.FIRED, at=AT.replace(tzinfo=None))
    with pytest.raises(ValueError, match="no time zone"):
        format_instant(AT.replace(tzinfo=None))


MODELS = [value for value in vars(wire).values() if isinstance(value, type) and issubclass(value, BaseModel)]


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.__name__)
def test_every_model_is_strict_documented_and_has_a_schema(model: type[BaseModel]) -> None:
    assert model.__doc__ and model.model_config["strict"] and model.model_config["frozen"]
    assert model.model_config["extra"] == ("allow" if model is wire.Problem else "forbid")
    assert model.model_json_schema()["type"] == "object"


def test_a_problem_may_carry_more() -> None:
    raw = body({"type": "urn:x", "title": "t", "status": 409, "detail": "d", "code": "not_ready", "txn": HEX})
    assert parse(wire.Problem, raw).model_extra == {"txn": HEX}


def test_admission_codes_are_problem_codes() -> None:
    codes = {case["code"] for case in read("admission/refused.json")["cases"]}
    assert {*codes, "not_a_json_value", "float_refused", "unknown_field", "invalid_request"} <= set(ErrorCode)


_IDS: TypeAdapter[str] = TypeAdapter(AttemptId)


@given(st.binary(min_size=_ATTEMPT_BYTES, max_size=_ATTEMPT_BYTES))
def test_attempt_ids_of_the_sdk_are_valid(random: bytes) -> None:
    assert _IDS.validate_python(encode_base64url(random))


@given(st.text(max_size=250))
def test_an_attempt_id_is_unchanged_in_a_path(text: str) -> None:
    try:
        name = _IDS.validate_python(text)
    except ValidationError:
        return
    assert quote(name, safe="") == name
    assert name not in {".", ".."} and 1 <= len(name) <= 200


@pytest.mark.parametrize("name", [".", "..", "a/b", "a\n", "", "a" * 201, "\xe9"])
def test_other_attempt_ids_are_refused(name: str) -> None:
    with pytest.raises(ValidationError):
        _IDS.validate_python(name)
