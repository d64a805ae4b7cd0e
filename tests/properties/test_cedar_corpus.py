"""Cedar's corpus through our engine: allow releases, deny denies, an error denies.

The corpus is cedar-policy/cedar-integration-tests @ f161e9f (Apache-2.0), `corpus-tests.tar.gz`: 7,809 policy sets of
eight requests each, with the decision, the reasons and the number of errors that Cedar's authors recorded. The tests
take 60 sets; `make vectors` takes all.
"""

import json
import os
import tarfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from cedarpy import PolicySet, Schema

from countersign.contract import Verdict
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


def decide_plain(policies: PolicySet, request: CedarRequest, entities: Any, schema: Schema) -> RulesOutcome:
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


def test_statements_are_those_of_the_parser(corpus: dict[str, str]) -> None:
    for name, text in corpus.items():
        if not name.endswith(".cedar"):
            continue
        statements, problems = scan(name, text)
        assert problems == []
        parsed = PolicySet.from_str(text)
        assert len(statements) == len(parsed) + len(parsed.templates()), name
