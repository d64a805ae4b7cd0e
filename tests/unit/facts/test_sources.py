"""Gathering facts: typed values with their age, or a failure with a reason; never an exception."""

import sqlite3
from contextlib import closing
from datetime import timedelta
from pathlib import Path

import pytest

from policy_service.domain.policy_request import Facts
from tests.fakes.bundles import NOW, PERMIT_ALL, BundleFolder, pay_manifest

ENTITY = '[entities.Account.attributes]\nstate = "String"\n'
FILE = '[[source]]\nname = "accounts"\nkind = "file"\nfile = "facts/accounts.json"\nentity = "Account"\n'
SQL = '[[source]]\nname = "db"\nkind = "sql"\npath = "facts/db.sqlite"\nentity = "Account"\nquery = "{}"\n'
OPEN = {"a1": {"state": "open"}}


@pytest.fixture
def folder(tmp_path: Path) -> BundleFolder:
    return BundleFolder(tmp_path).policies(PERMIT_ALL)


def database(folder: BundleFolder, *statements: str) -> None:
    file = folder.path / "facts/db.sqlite"
    file.parent.mkdir(exist_ok=True)
    with closing(sqlite3.connect(file)) as connection:
        for statement in statements:
            connection.execute(statement)
        connection.commit()


def gather(folder: BundleFolder, account: str = "a1", amount: int = 1) -> Facts:
    return folder.question({"account": account, "amount": amount}).facts


def test_without_sources_there_is_nothing_to_know(folder: BundleFolder) -> None:
    facts = gather(folder)
    assert (facts.resource, facts.agent, facts.failed) == ({}, {}, None)
    assert facts.bundle == folder.load().digest


def test_a_file_knows_the_resource_by_its_id(folder: BundleFolder) -> None:
    facts = gather(folder.write("facts.toml", ENTITY + FILE).write("facts/accounts.json", OPEN))
    assert facts.resource == {"state": "open"}
    assert [(age.source, age.as_of) for age in facts.ages] == [("accounts", NOW)]
    assert [(s.label, s.value, s.source) for s in facts.shown] == [("state", "open", "accounts")]


def test_a_file_may_know_the_agent(folder: BundleFolder) -> None:
    folder.write("facts.toml", '[entities.Agent.attributes]\nlimit = "Long"\n'
                 + FILE.replace('"Account"', '"Agent"').replace("accounts", "agents"))  # fmt: skip
    assert gather(folder.write("facts/agents.json", {"robot": {"limit": 5}})).agent == {"limit": 5}


def test_a_query_weighs_the_args_and_hands_policy_a_typed_answer(folder: BundleFolder) -> None:
    database(folder, "CREATE TABLE t (id TEXT, state TEXT)", "INSERT INTO t VALUES ('a1', 'open')")
    query = (
        "SELECT CASE WHEN json_extract(:args, '$.amount') > 10 THEN 'much' ELSE state END AS state"
        " FROM t WHERE id = :resource_id AND :agent = 'robot' AND :tool = 'pay' AND :now LIKE '2026-11-21T22:00%'"
    )
    folder.write("facts.toml", ENTITY + SQL.format(query))
    assert gather(folder, amount=5).resource == {"state": "open"}
    assert gather(folder, amount=50).resource == {"state": "much"}


def test_sources_by_environment_variable(folder: BundleFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    database(folder, "CREATE TABLE t AS SELECT 'open' AS state")
    source = SQL.replace('path = "facts/db.sqlite"', 'url_env = "FACTS_URL"')
    text = ENTITY + source.format("SELECT state FROM t")
    monkeypatch.setenv("FACTS_URL", f"sqlite:///{folder.path}/facts/db.sqlite")
    assert gather(folder.write("facts.toml", text)).resource == {"state": "open"}
    monkeypatch.delenv("FACTS_URL")
    facts = gather(folder.write("facts.toml", text))
    assert facts.failed is not None and "FACTS_URL" not in facts.failed
    assert "FACTS_URL" in str(facts.alarm)


def test_a_source_for_another_tool_is_not_asked(folder: BundleFolder) -> None:
    folder.write("tools/other.json", pay_manifest(tool="other"))
    folder.write("facts.toml", ENTITY + FILE + 'tools = ["other"]\n').write("facts/accounts.json", {})
    assert gather(folder) == Facts(folder.load().digest)


TIMED = 'max_age = "5m"\nas_of = "at"\n'


def with_row(folder: BundleFolder, settings: str, rows: dict[str, object]) -> BundleFolder:
    return folder.write("facts.toml", ENTITY + FILE + settings).write("facts/accounts.json", rows)


def test_doubt_about_a_fact_is_a_failure(folder: BundleFolder) -> None:
    facts = gather(with_row(folder, "", {}))
    assert "knows nothing about Account 'a1'" in str(facts.failed)
    for at in ("2026-11-21T21:54:59Z", "2026-11-21T22:00:06Z"):  # stale, and from the future
        facts = gather(with_row(folder, TIMED, {"a1": {"state": "open", "at": at}}))
        assert "is stale" in str(facts.failed)
        assert facts.resource == {}


WRONG_ROWS: dict[str, tuple[str, dict[str, object], str]] = {
    "an attribute is missing": ("", {"a1": {}}, "row 'a1': 'state' is missing"),
    "an attribute is null": ("", {"a1": {"state": None}}, "row 'a1': 'state' is missing"),
    "an attribute of another type": ("", {"a0": {"state": "open"}, "a1": {"state": 5}}, "row 'a1': 'state': 5 is not"),
    "an undeclared attribute": ("", {"a1": {"state": "open", "x": 1}}, "row 'a1': 'x' is no attribute"),
    "a fact without its time": (TIMED, {"a1": {"state": "open"}}, "row 'a1': 'at': None is not a time"),
    "a fact with a time that is none": (TIMED, {"a1": {"state": "open", "at": "noon"}}, "row 'a1': 'at': "),
    "a fact from beyond all time": (TIMED, {"a1": {"state": "open", "at": 10**15}}, "row 'a1': 'at': "),
}  # fmt: skip


@pytest.mark.parametrize(("settings", "rows", "message"), WRONG_ROWS.values(), ids=WRONG_ROWS)
def test_a_row_that_does_not_fit_keeps_its_bundle_from_coming_into_force(
    folder: BundleFolder, settings: str, rows: dict[str, object], message: str
) -> None:
    """It would deny every call about that entity, for as long as the bundle stood."""
    (problem,) = with_row(folder, settings, rows).problems()
    assert problem.startswith(f"facts/accounts.json: {message}")


def test_the_first_invalid_rows_are_reported(folder: BundleFolder) -> None:
    assert len(with_row(folder, "", {f"a{n}": {} for n in range(10_000)}).problems()) == 20


@pytest.mark.parametrize("seconds", [-300, -1, 0, 5])
def test_a_fact_is_fresh_up_to_its_max_age(folder: BundleFolder, seconds: int) -> None:
    at = NOW + timedelta(seconds=seconds)
    facts = gather(with_row(folder, TIMED, {"a1": {"state": "open", "at": at.isoformat()}}))
    assert (facts.failed, facts.ages[0].as_of) == (None, at)


UNUSABLE = [f"SELECT {it}" for it in ("NULL AS state", "5 AS state", "state AS x FROM t", "state FROM gone")]
SQL_FAILING = {
    "two rows": ("SELECT state FROM t UNION ALL SELECT state FROM t", "more than one answer"),
    "no row": ("SELECT state FROM t WHERE 0", "knows nothing"),
    **{query: (query, "could not be used") for query in UNUSABLE},
}


@pytest.mark.parametrize(("query", "message"), SQL_FAILING.values(), ids=SQL_FAILING)
def test_a_query_answers_with_one_row_of_its_columns(folder: BundleFolder, query: str, message: str) -> None:
    database(folder, "CREATE TABLE t AS SELECT 'open' AS state")
    assert message in (gather(folder.write("facts.toml", ENTITY + SQL.format(query))).failed or "")


def test_an_optional_source_may_find_nothing_and_an_optional_attribute_be_null(folder: BundleFolder) -> None:
    folder.write("facts.toml", ENTITY + FILE + "optional = true\n").write("facts/accounts.json", {})
    assert gather(folder) == Facts(folder.load().digest)
    text = ENTITY.replace('"String"', '"String?"') + FILE
    facts = gather(folder.write("facts.toml", text).write("facts/accounts.json", {"a1": {"state": None}}))
    assert (facts.resource, facts.failed) == ({}, None)


def test_sources_that_were_closed_by_a_swap_still_answer_a_question_under_way(folder: BundleFolder) -> None:
    database(folder, "CREATE TABLE t AS SELECT 'open' AS state")
    folder.write("facts.toml", ENTITY + SQL.format("SELECT state FROM t")).load().close()
    assert gather(folder).resource == {"state": "open"}
