"""facts.toml: the valid forms and every error."""

import tomllib

import pytest

from policy_service.facts.config import FactsConfig, parse_facts_config
from policy_service.facts.sources import sources_for

ENTITY = '[entities.Account.attributes]\nstate = "String"\nlimit = "Long?"\n'
HTTP = '[[source]]\nname = "bank"\nkind = "http"\nurl = "https://facts.example/a"\nentity = "Account"\n'
FILE = '[[source]]\nname = "accounts"\nkind = "file"\nfile = "facts/accounts.json"\nentity = "Account"\n'
SQL = '[[source]]\nname = "db"\nkind = "sql"\nurl_env = "DB_URL"\nentity = "Account"\nquery = "SELECT 1"\n'


LISTED, URL_ENV = 'attributes = ["state", "limit"]\n', 'url_env = "DB_URL"'


def parse(text: str) -> FactsConfig:
    return parse_facts_config(tomllib.loads(text))


def test_an_empty_file_declares_nothing() -> None:
    assert parse("") == FactsConfig()


def test_a_source_gives_all_attributes_of_its_entity_unless_it_lists_them() -> None:
    config = parse(ENTITY + FILE)
    assert config.attributes_of(config.source[0]) == ("state", "limit")
    assert {name: kind.optional for name, kind in config.attribute_types("Account").items()} == {
        "state": False, "limit": True,
    }  # fmt: skip
    assert config.attribute_types("Elsewhere") == {}


def test_what_is_not_always_there_is_optional_to_policy() -> None:
    for line in ('tools = ["pay"]\n', "optional = true\n"):
        types = parse(ENTITY + FILE + line).attribute_types("Account")
        assert all(kind.optional for kind in types.values())


def test_two_sources_may_give_one_attribute_to_different_tools() -> None:
    config = parse(ENTITY + FILE + LISTED + 'tools = ["pay"]\n' + SQL + LISTED + 'tools = ["refund"]\n')
    assert [source.name for source in sources_for(config, "Account", "pay")] == ["accounts"]
    assert [source.name for source in sources_for(config, "Account", "refund")] == ["db"]
    assert sources_for(config, "Account", "other") == ()


OURS = ('User.attributes]\nx = "Long"\n', 'Agent.attributes]\nowner = "String"\n')
WRONG: dict[str, tuple[str, str]] = {
    "an unknown type": ('[entities.A.attributes]\nx = "Float"\n', "not an attribute type"),
    "an unknown member": (ENTITY + FILE + 'fiel = "x"\n', "fiel"),
    "a lookup without an address": (ENTITY + HTTP.replace("url", "path"), "belong to others"),
    "a lookup without a timeout": (ENTITY + HTTP + 'timeout = "11s"\n', "at most 10s"),
    "a lookup that sends nothing": (ENTITY + HTTP + "send = []\n", "sends nothing"),
    "a lookup that sends what we do not know": (ENTITY + HTTP + 'send = ["token"]\n', "send"),
    "an answer kept beyond its age": (ENTITY + HTTP + 'cache = "2m"\nmax_age = "1m"\n', "lower cache"),
    "an answer kept for hours": (ENTITY + HTTP + 'cache = "11m"\n', "lower cache"),
    "a file with an address": (ENTITY + FILE + 'url = "https://facts.example"\n', "url belongs to"),
    "a file that is kept": (ENTITY + FILE + 'cache = "1m"\n', "cache belongs to"),
    "an unknown kind": (ENTITY + FILE.replace('"file"', '"ftp"'), "kind"),
    "an entity without attributes": ("[entities.A.attributes]\n", "at least 1"),
    **{ours: (f"[entities.{ours}", "belongs to the service") for ours in OURS},
    "a source for an undeclared entity": (FILE, "declare"),
    "an attribute without a source": (ENTITY, "has no source"),
    "a listed attribute without a type": (ENTITY + FILE + 'attributes = ["state", "limit", "x"]\n', "no type"),
    "two sources for one attribute": (ENTITY + FILE + LISTED + SQL + 'attributes = ["state"]\n', "keep one"),
    "two sources and one that lists nothing": (ENTITY + FILE + SQL + 'attributes = ["state"]\n', "must list"),
    "two sources of one name": (ENTITY + FILE + FILE, "appears twice"),
    **{path: (ENTITY + FILE.replace("facts/", path), "facts/NAME.json") for path in ("../", "facts/../")},
    "no file": (ENTITY + FILE.replace('file = "facts/accounts.json"\n', ""), "facts/NAME.json"),
    "a file with a query": (ENTITY + FILE + 'query = "SELECT 1"\n', "belong to kind"),
    "sql without a database": (ENTITY + SQL.replace('url_env = "DB_URL"\n', ""), "either url_env"),
    "sql with two databases": (ENTITY + SQL + 'path = "facts/x.sqlite"\n', "either url_env"),
    "sql with a file": (ENTITY + SQL + 'file = "facts/x.json"\n', "belongs to kind"),
    "a database outside the folder": (ENTITY + SQL.replace(URL_ENV, 'path = "../x.sqlite"'), "inside the bundle"),
    "an absolute path": (ENTITY + SQL.replace(URL_ENV, 'path = "/x.sqlite"'), "inside the bundle"),
    "a URL in the file itself": (ENTITY + SQL.replace("DB_URL", "sqlite:///x"), "url_env"),
    "no query": (ENTITY + SQL.replace('query = "SELECT 1"\n', ""), "needs a query"),
    "a statement that writes": (ENTITY + SQL.replace("SELECT 1", "DELETE FROM x"), "starts with SELECT"),
    "a bind we do not know": (ENTITY + SQL.replace("SELECT 1", "SELECT :user"), ":user"),
    "max_age without the fact's time": (ENTITY + FILE + 'max_age = "5m"\n', "no as_of"),
    "a timeout that is none": (ENTITY + SQL + 'timeout = "soon"\n', "not a duration"),
    "a name that is none": (ENTITY + FILE.replace('"accounts"', '"Acc ounts"'), "name"),
}  # fmt: skip


@pytest.mark.parametrize(("text", "message"), WRONG.values(), ids=WRONG)
def test_a_mistake_is_named(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse(text)


def test_binds_are_found_as_sqlalchemy_finds_them() -> None:
    query = "SELECT :args, :resource_id, :agent, :tool, :now, '12:30', x::int"
    assert parse(ENTITY + SQL.replace("SELECT 1", query)).source[0].query == query
