"""The pytest plugin's people settle reviews, unknown outcomes and remaining effects."""

from pathlib import Path

from tests.fakes.payments import PAY, Payments, gate
from tests.integration.sdk.test_pytest_plugin import last, pytest_in

PAYING = '''
from countersign import NotDone, tool

standing, answers = [], True


@tool("pay", resource=("Account", "account"), compensate="unpay",
      compensation_map={"payment": "result:/id", "amount": "args:/amount"})
def pay(account: str, amount: int) -> dict[str, str]:
    """Pay somebody."""
    standing.append(account)
    if not answers:
        raise TimeoutError("the bank does not answer")
    return {"id": account}


@tool("unpay", resource=("Account", "payment"))
def unpay(payment: str, amount: int) -> str:
    """Take a payment back."""
    standing.remove(payment)
    return "taken back"


@tool("mail", resource=("Account", "to"))
def mail(to: str, text: str) -> str:
    """Write to somebody."""
    if text == "bounces":
        raise NotDone("there is no such address")
    if not answers:
        raise TimeoutError("the post does not answer")
    return "sent"
'''

UNHAPPY = """
import pytest
import my_agent
from countersign import EffectFailed, MisuseError, OutcomeUnknown, resume, transaction
from countersign.testing import VoteRefused
from my_agent import mail, pay


@pytest.fixture(autouse=True)
def world(monkeypatch):
    monkeypatch.setattr(my_agent, "standing", [])
    monkeypatch.setattr(my_agent, "answers", True)


@pytest.fixture
def silent(world, monkeypatch):
    monkeypatch.setattr(my_agent, "answers", False)


def bounced(key="a", account="acme"):
    with pytest.raises(EffectFailed) as failed, transaction(key=key):
        pay(account, 10)
        mail("acme", "bounces")
    return failed.value


def doubted(key="a", account="acme"):
    with pytest.raises(OutcomeUnknown) as unknown, transaction(key=key):
        pay(account, 10)
    return unknown.value


def refused(says, act, *words, error=MisuseError, **more):
    with pytest.raises(error, match=says):
        act(*words, **{"by": "finance"} | more)


def ended():
    (found,) = resume()
    return found.after.value


def test_a_compensation_that_waits_is_approved(countersign_people):
    bounced()
    assert my_agent.standing == ["acme"]
    countersign_people.approve("a", by="finance")
    assert (ended(), my_agent.standing) == ("settled", [])


def test_by_the_error_that_names_it(countersign_people):
    failed, settle = bounced(), countersign_people.settle
    refused("no review is open for 'legal'; open ones are for finance", countersign_people.approve, failed, by="legal")
    countersign_people.deny(failed, "they keep it", by="finance")
    resume()
    assert my_agent.standing == ["acme"]
    refused("no review is open: ", countersign_people.approve, failed)
    settle("a", "left_standing", by="finance")
    refused("no such task is open", settle, "a", "left_standing")


def test_an_unknown_outcome_that_fired(countersign_people, silent):
    more = {"result": {"id": "acme"}, "reason": "it is booked"}
    countersign_people.settle(doubted(), "fired", by="finance", **more)
    assert (ended(), my_agent.standing) == ("settled", ["acme"])


def test_an_unknown_outcome_that_did_not_fire(countersign_people, silent):
    doubted()
    countersign_people.settle("a", "not_fired", by="finance")
    assert ended() == "ended"


def test_another_transaction_is_none_of_this(countersign_people, silent):
    doubted()
    my_agent.answers = True
    with transaction(key="b"):
        mail("acme", "hello")
    settle = countersign_people.settle
    refused("no such task is open: the transaction is 'settled'", settle, "b", "fired")


def test_of_two_it_says_which(countersign_people, silent):
    with pytest.raises(OutcomeUnknown), transaction(key="a") as txn, txn.parallel():
        pay("acme", 10)
        mail("acme", "hello")
    settle = countersign_people.settle
    refused("select one by tool=.* there are unknown of .*, unknown of", settle, "a", "fired")
    refused("no such task is open", settle, "a", "fired", tool="unpay")
    settle("a", "not_fired", by="finance", tool="mail")
    settle("a", "not_fired", by="finance")
    assert ended() == "ended"


def test_what_is_no_word_on_it(countersign_people, silent):
    with pytest.raises(OutcomeUnknown), transaction(key="a"):
        effect = pay("acme", 10).effect_id
    settle, none = countersign_people.settle, "no such task is open"
    refused("'boss' is no group of this .*finance", settle, "a", "fired", by="boss", error=VoteRefused)
    refused("'done' is no answer to a task; there are fired, not_fired", settle, "a", "done")
    refused("finance-1 may not decide this, or not so: .*fired", settle, "a", "compensated", error=VoteRefused)
    refused("reason", settle, "a", "fired", reason=" ", error=VoteRefused)
    refused(none, settle, "a", "fired", effect="0" * 64)
    refused("agent has staged nothing as one transaction under the key 'z'", settle, "z", "fired")
    settle("a", "fired", by="finance", effect=effect)
    refused(none, settle, "a", "not_fired")


class TestOnShortPages:
    @pytest.fixture
    def countersign_environment(self):
        return {"COUNTERSIGN_MAX_PAGE_SIZE": "1"}

    def test_all_of_them_are_read(self, countersign_people):
        for key in "abc":
            bounced(key, key)
        for key in "cab":
            countersign_people.approve(key, by="finance")
        resume()
        assert my_agent.standing == []
        my_agent.answers = False
        for key in "def":
            doubted(key, key)
        for key in "fde":
            countersign_people.settle(key, "fired", by="finance")
"""


def test_what_did_not_end_well_is_decided_by_people_too(tmp_path: Path) -> None:
    (tmp_path / "policies").mkdir()
    bundle = Payments(tmp_path / "policies").rules(gate("taking-back", "finance", action="unpay"))
    typed = {name: PAY["args"]["properties"][name] for name in ("account", "amount")}
    bundle.write("tools/pay.json", PAY | {"args": PAY["args"] | {"properties": typed}})
    done = pytest_in(tmp_path, {"my_agent.py": PAYING, "test_unhappy.py": UNHAPPY})
    assert last(done) == "8 passed", done.stdout
