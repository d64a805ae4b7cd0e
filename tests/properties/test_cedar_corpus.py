"""Cedar's corpus through our engine: allow releases, deny denies, an error denies.

The corpus is cedar-policy/cedar-integration-tests @ f161e9f (Apache-2.0), `corpus-tests.tar.gz`: 7,809 policy sets of
eight requests each, with the decision, the reasons and the number of errors that Cedar's authors recorded. The tests
take 60 sets; `make vectors` takes all. Policies that a bundle's stricter checks refuse are counted separately, with
the reason.
"""

import json
import os
import tarfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import pytest
from cedarpy import PolicySet, Schema, validate_policies

from countersign.contract import AdmissionError, Verdict, load
from policy_service.pap.policies import read_policies
from policy_service.pap.problems import BundleError
from policy_service.pap.scan import scan
from policy_service.pdp.engine import RulesOutcome, combine_outcome
from policy_service.pdp.rules import CedarRequest, build_entities, evaluate_policies
from tests.counterparts import require

ROOT: Final = Path(__file__).resolve().parents[2]
WHOLE: Final = os.environ.get("COUNTERSIGN_CORPUS") == "whole"
SETS: Final = 7_809 if WHOLE else 60
WAY: Final = (
    "put corpus-tests.tar.gz of cedar-policy/cedar-integration-tests @ f161e9f as cedar/corpus-tests.tar.gz "
    "into the folder that COUNTERSIGN_VECTORS names"
)


@pytest.fixture(scope="module")
def corpus() -> Iterator[dict[str, str]]:
    """The sampled files by name: every n-th policy set."""
    folder = Path(os.environ.get("COUNTERSIGN_VECTORS") or ROOT / "../shared/data/vectors")
    archive = folder / "cedar/corpus-tests.tar.gz"
    require("Cedar's corpus", archive.is_file(), WAY)
    with tarfile.open(archive) as tar:
        names = [member.name for member in tar.getmembers() if member.isfile()]
        stems = sorted(name.removesuffix(".cedar") for name in names if name.endswith(".cedar"))
        wanted = stems[:: len(stems) // SETS][:SETS]
        suffixes = (".cedar", ".cedarschema", ".entities.json", ".json")
        of_these = {stem + suffix for stem in wanted for suffix in suffixes}
        # in the archive's order: to go back in it is to unpack it again
        yield {
            member.name: tar.extractfile(member).read().decode()  # type: ignore[union-attr]
            for member in tar.getmembers()
            if member.name in of_these
        }


def load_plain(name: str, text: str) -> PolicySet:
    """Policies with the engine's positional ids (`policy0`, ...), as the corpus names them."""
    _, problems = scan(name, text)
    if problems:
        raise BundleError(problems)
    return PolicySet.from_str(text)


def decide_plain(
    policies: PolicySet, request: CedarRequest, entities: Sequence[Mapping[str, Any]], schema: Schema
) -> RulesOutcome:
    answer = evaluate_policies(policies, request, build_entities(entities, schema), schema)
    return combine_outcome(answer, frozenset())


def requests_of(corpus: dict[str, str]) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    for name, text in corpus.items():
        if name.endswith(".json") and not name.endswith(".entities.json"):
            case = json.loads(text)
            for request in case["requests"]:
                yield case, request


@pytest.mark.timeout(1800 if WHOLE else 300)
def test_corpus_requests_have_the_recorded_answers_and_errors_deny(corpus: dict[str, str]) -> None:
    outcomes: Counter[str] = Counter()
    prepared: dict[str, Any] = {}
    for case, each in requests_of(corpus):
        if case["policies"] not in prepared:
            policies = load_plain(case["policies"], corpus[case["policies"]])
            entities = json.loads(corpus[case["entities"]])
            prepared = {case["policies"]: (policies, entities, Schema.from_str(corpus[case["schema"]]))}
        context = json.dumps(each["context"])
        request = CedarRequest(each["principal"], each["action"], each["resource"], context)
        outcome = decide_plain(prepared[case["policies"]][0], request, *prepared[case["policies"]][1:])
        where = (case["policies"], each["description"])
        assert len(outcome.errors) == len(each["errors"]), where
        if each["errors"]:
            assert outcome.verdict is Verdict.DENY, where
            outcomes["error"] += 1
        else:
            expected = Verdict.RELEASE if each["decision"] == "allow" else Verdict.DENY
            assert (outcome.verdict, sorted(outcome.determining)) == (expected, sorted(each["reason"])), where
            outcomes[each["decision"]] += 1
    assert sum(outcomes.values()) == SETS * 8
    assert min(outcomes[kind] for kind in ("allow", "deny", "error")) >= min(50, SETS // 6), outcomes


REFUSALS: Final = {
    "no @id": "every policy needs an id",
    "an annotation we do not know": "is not an annotation we know",
    "an annotation in the wrong place": "belongs",
    "an extension function with the wrong number of arguments": "argument(s), got",
    "a template": "a template",
    "a deep or long policy": "nested",
}
"""Why a bundle would not take a policy of the corpus: the name of a reason, and how its sentence is known."""

OF_THE_WHOLE: Final = {
    "an annotation we do not know": 673,
    "an extension function with the wrong number of arguments": 68,
    "not valid by its schema": 1_283,
    "context: reserved_key": 3_800,
    "context: integer_out_of_range": 145,
    "context: taken": 58_527,
}
"""What is refused of the whole corpus, by reason: policies but for their missing @id, then contexts of requests."""


@pytest.mark.timeout(1800 if WHOLE else 300)
def test_corpus_policies_are_refused_for_known_reasons(corpus: dict[str, str]) -> None:
    counted: Counter[str] = Counter()
    for name, text in corpus.items():
        if name.endswith(".cedar"):
            schema = Schema.from_str(corpus[f"{name}schema"])
            for statement in scan(name, text)[0]:
                counted["policies"] += 1
                counted.update(_refusals(statement.text))
                named = f'@id("its-own") {statement.text}'
                again = _refusals(named)
                counted["taken with an id" if not again else "not taken with an id either"] += 1
                if not again and not validate_policies(named, schema).validation_passed:
                    counted["not valid by its schema"] += 1
    for _, request in requests_of(corpus):
        counted[_admission(request["context"])] += 1
    assert counted["policies"] == counted["taken with an id"] + counted["not taken with an id either"]
    assert counted["no @id"] > 0.9 * counted["policies"]
    assert sum(count for what, count in counted.items() if what.startswith("context: ")) == SETS * 8
    assert not WHOLE or {what: counted[what] for what in OF_THE_WHOLE} == OF_THE_WHOLE


def _refusals(text: str) -> set[str]:
    """The reasons for which a bundle refuses this policy."""
    _, problems = read_policies({"corpus.cedar": text.encode()}, frozenset())
    return {_reason(problem.message) for problem in problems}


def _reason(message: str) -> str:
    known = [reason for reason, words in REFUSALS.items() if words in message]
    assert len(known) == 1, message
    return known[0]


def _admission(context: Any) -> str:
    """Whether args can hold this context; an agent cannot send Cedar's typed values."""
    try:
        load(json.dumps(context).encode())
    except AdmissionError as error:
        return f"context: {error.code}"
    return "context: taken"


def test_statements_are_those_of_the_parser(corpus: dict[str, str]) -> None:
    for name, text in corpus.items():
        if not name.endswith(".cedar"):
            continue
        statements, problems = scan(name, text)
        assert problems == []
        parsed = PolicySet.from_str(text)
        assert len(statements) == len(parsed) + len(parsed.templates()), name
