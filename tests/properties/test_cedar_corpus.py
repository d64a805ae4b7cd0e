"""200 policy sets of Cedar's own corpus through our engine room: allow releases, deny denies, an error
denies.

The corpus is cedar-policy/cedar-integration-tests @ f161e9f (Apache-2.0), `corpus-tests.tar.gz`; its 1,600
requests of this sample are answered with the reasons and the number of errors that Cedar's authors recorded.
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
from policy_service.pap.plain import decide_plain, load_plain
from policy_service.pap.scan import scan
from policy_service.pdp.cedar import Request
from tests.counterparts import require

ROOT: Final = Path(__file__).resolve().parents[2]
SAMPLE: Final = 200
WAY: Final = (
    "put corpus-tests.tar.gz of cedar-policy/cedar-integration-tests @ f161e9f as cedar/corpus-tests.tar.gz "
    "into the folder that COUNTERSIGN_VECTORS names"
)


@pytest.fixture(scope="module")
def corpus() -> Iterator[dict[str, str]]:
    """The sampled files by name: every n-th policy set, so that no corner of the corpus is left out."""
    folder = Path(os.environ.get("COUNTERSIGN_VECTORS") or ROOT / "../shared/data/vectors")
    archive = folder / "cedar/corpus-tests.tar.gz"
    require("Cedar's corpus", archive.is_file(), WAY)
    with tarfile.open(archive) as tar:
        members = {member.name: member for member in tar.getmembers() if member.isfile()}
        stems = sorted(name.removesuffix(".cedar") for name in members if name.endswith(".cedar"))
        wanted = stems[:: len(stems) // SAMPLE][:SAMPLE]
        suffixes = (".cedar", ".cedarschema", ".entities.json", ".json")
        names = sorted(
            (stem + suffix for stem in wanted for suffix in suffixes), key=lambda n: members[n].offset
        )
        yield {name: tar.extractfile(members[name]).read().decode() for name in names}  # type: ignore[union-attr]


def requests_of(corpus: dict[str, str]) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    for name, text in corpus.items():
        if name.endswith(".json") and not name.endswith(".entities.json"):
            case = json.loads(text)
            for request in case["requests"]:
                yield case, request


@pytest.mark.timeout(300)
def test_corpus_requests_have_the_recorded_answers_and_errors_deny(corpus: dict[str, str]) -> None:
    outcomes: Counter[str] = Counter()
    prepared: dict[str, Any] = {}
    for case, each in requests_of(corpus):
        if case["policies"] not in prepared:
            policies = load_plain(case["policies"], corpus[case["policies"]])
            entities = json.loads(corpus[case["entities"]])
            prepared = {case["policies"]: (policies, entities, Schema.from_str(corpus[case["schema"]]))}
        context = json.dumps(each["context"])
        request = Request(each["principal"], each["action"], each["resource"], context)
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
    assert sum(outcomes.values()) == SAMPLE * 8
    assert min(outcomes[kind] for kind in ("allow", "deny", "error")) >= 50, outcomes


def test_our_cut_of_the_text_is_the_parsers(corpus: dict[str, str]) -> None:
    for name, text in corpus.items():
        if not name.endswith(".cedar"):
            continue
        statements, problems = scan(name, text)
        assert problems == []
        parsed = PolicySet.from_str(text)
        assert len(statements) == len(parsed) + len(parsed.templates()), name
