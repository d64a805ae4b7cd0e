"""Every Slack message, over arbitrary effects: within Slack's limits, without parsed content, and with buttons only
where the shown arguments are the exact bytes."""

import json
from dataclasses import replace
from datetime import timedelta
from typing import Any

from hypothesis import example, given, settings
from hypothesis import strategies as st

from policy_service.channels.slack.blocks import views
from policy_service.channels.slack.blocks.block_kit import Pointer, RenderedMessage
from policy_service.channels.slack.blocks.card import (
    DigestLine,
    card,
    digest,
    minimal_card,
    no_buttons_reason,
    thread_reply,
)
from policy_service.channels.slack.blocks.views import home_view
from policy_service.queries import review_models as reading
from policy_service.queries.effects import NOT_IN_THE_SCHEMA, ArgRow, Piece
from policy_service.queries.queue import CappedCount, QueuePage, TabCounts
from policy_service.queries.review_models import EventLine, GateView, RecentDenial, ReviewPage, VoteLine
from tests.fakes import policies, reviews
from tests.fakes.blocks import buttons, code, nodes, refused, refused_view

NOW = reviews.NOW
LONG = settings().max_examples > 1_000  # HYPOTHESIS_PROFILE=long
URL = "https://countersign.example/" + "x" * 120
POINTER = Pointer("c" * 64, "ab" * 32)

HOSTILE = (
    "<!channel>", "<@U012AB>", "<!subteam^S1>", "<https://evil.example|bank>", "@here", "#general", ":tada:",
    "*b* _i_ ~s~ `c` ```", "&lt;!here&gt;", "\u202egpj", "a\u200bb", "\u2066x\u2069", "p\u0430y", "\u0000\u001b[31m",
    "a" + "\n" * 99 + "b", " " * 99 + "x", "\U000e0041\U000e0042", "e" + "\u0301" * 40, "https://bank@evil.example/",
    "<script>", "‹U+202E›", "(hidden, 3 bytes)", '"},{"', "\\u202e", "\U0001f468\u200d\U0001f4bb", "\u00a0", "\ufeff",
)  # fmt: skip

SETTLED = ("met", "denied", "expired", "withdrawn", "revoked", "paused")

chars = st.characters(exclude_categories=["Cs"])
honest = st.sampled_from(["finance", "pay_1", "Ana Ito"])
short = st.one_of(st.sampled_from(HOSTILE), st.text(chars, max_size=30), honest)
long = st.builds(lambda text, times: text * times, short, st.sampled_from([1, 1, 1, 20, 100]))
scalars = st.one_of(st.none(), st.booleans(), st.integers(-(10**12), 10**12), long)


def containers(keys: st.SearchStrategy[str], inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=3)


json_values = st.recursive(scalars, lambda inner: containers(short, inner), max_leaves=5)
times = st.integers(-5_000, 5_000).map(lambda minutes: NOW + timedelta(minutes=minutes))
pieces = st.builds(Piece, long, st.booleans(), st.sampled_from(["text", "money", "recipient", "value"]))


def few(strategy: st.SearchStrategy[Any], usual: int = 2, many: int = 45) -> st.SearchStrategy[Any]:
    """Mostly few; sometimes many equal ones."""
    several = st.lists(strategy, max_size=usual).map(tuple)
    return several | st.builds(lambda one, number: (one,) * number, strategy, st.integers(1, many))


names = few(short, 3, 30)
gates = st.builds(
    GateView,
    policy_id=short, title=short, groups=names.filter(bool), quorum=st.integers(1, 5), have=st.integers(0, 5),
    step_up=st.sampled_from([None, None, None, "passkey"]), shared=st.booleans(), cedar_text=short, file=short,
    line=st.integers(1, 9_999), own_quorum=st.integers(1, 5), own_step_up=st.sampled_from([None, "passkey"]),
    doc=long, could_sign=names, could_sign_more=st.integers(0, 99), barred=names,
    also=names, added=names,
)  # fmt: skip
verdicts = st.sampled_from(["approve", "approve", "deny"])
votes = st.builds(VoteLine, long, verdicts, long, times, st.booleans(), st.just("oidc"))
siblings = st.builds(reading.Sibling, st.integers(1, 500), few(pieces), st.sampled_from(["review", "fired"]))
rows = st.dictionaries(short, json_values, max_size=5) | st.builds(
    lambda number, value: {f"a{i}": value for i in range(number)}, st.integers(1, 400), st.integers() | short
)


PAGE_STATE = st.fixed_dictionaries(
    {
        "state": st.sampled_from(["open", "open", "open", "open", *SETTLED]),
        "effect_state": st.sampled_from("review released redeemed fired failed unknown denied".split()),
        "superseded_by": st.sampled_from([None, None, None, 2]),
        "replaced_by": st.sampled_from(["", "rev_2"]),
        **dict.fromkeys(("reason_required", "undoable"), st.booleans()),
        "answer_by": times,
    }
)


@st.composite
def arg_rows(draw: st.DrawFn) -> tuple[ArgRow, ...]:
    found = []
    for name, value in draw(rows).items():
        secret = draw(st.sampled_from([False, False, False, True]))
        kind = draw(st.sampled_from(["string", "string", NOT_IN_THE_SCHEMA]))
        money = draw(st.sampled_from([None, None, reviews.usd(124_000)]))
        more = {"recipient": draw(st.booleans()), "unseen": draw(st.booleans())}
        found.append(reviews.arg(name, value, kind, secret=secret, money=money, **more))
    return tuple(found)


@st.composite
def pages(draw: st.DrawFn) -> ReviewPage:
    args, exact = draw(arg_rows()), draw(st.sampled_from([True, True, True, False]))
    data: dict[str, Any] = {row.name: json.loads(row.value_json) for row in args}
    ordered = dict(sorted(data.items(), key=lambda item: item[0].encode("utf-16-be")))
    whole = json.dumps(ordered, ensure_ascii=False, separators=(",", ":")).encode()
    canonical = whole if exact else whole[:-1]
    page = replace(reviews.refund(), args=args, canonical=canonical, **draw(PAGE_STATE))
    if draw(st.booleans()):
        return page
    return replace(
        page,
        sentence=draw(few(pieces)), finality=draw(long), tool=draw(long), tool_title=draw(long), agent=draw(long),
        agent_owner=draw(st.none() | long), commit=draw(short), gates=draw(few(gates, 2, 20)), votes=draw(few(votes)),
        siblings=draw(few(siblings)),
        warnings=draw(few(long)), unanswerable=draw(st.none() | long),
        denied_before=draw(few(st.builds(RecentDenial, st.just("rev_0"), times, long, long, names))),
        rule_changes=draw(few(st.builds(reading.RuleChange, times, short, short, long))),
        since_staged=draw(few(st.builds(reading.ArgChange, long, short, short))),
        break_glass=draw(st.none() | st.builds(reading.BreakGlassView, few(votes), st.none() | times)),
    )  # fmt: skip


@st.composite
def heads(draw: st.DrawFn) -> ReviewPage:
    """The summary of a page in lists and forms."""
    return reviews.refund(
        sentence=draw(few(pieces)), agent=draw(long), agent_owner=draw(st.none() | long), finality=draw(long),
        state=draw(st.sampled_from(["open", *SETTLED])), answer_by=draw(times), reason_required=draw(st.booleans()),
    )  # fmt: skip


def require_sound(message: RenderedMessage) -> None:
    assert refused(message.blocks) == []
    assert not {"<", ">"} & set(message.text)
    for node in nodes(message.blocks):
        assert len(node.get("value") or "") <= 2_000
        assert str(node.get("url", URL)).startswith("https://")
        if node.get("type") == "button" and node["action_id"] in ("approve", "deny", "ask"):
            assert node["value"] == POINTER.value


def bytes_behind(text: str, page: ReviewPage) -> bytes:
    """The canonical bytes, computed independently: each line parsed as JSON alone."""
    secrets = {row.name: row.value_json for row in page.args if row.secret}
    if text == "{}":
        return b"{}"
    first, *lines, last = text.split("\n")
    assert (first, last) == ("{", "}")
    members = []
    for line in lines:
        member = line.removeprefix("  ").removesuffix(",")
        for name, value in secrets.items():
            quoted = json.dumps(name, ensure_ascii=False)
            if member.startswith(f"{quoted}: (hidden, "):
                member = f"{quoted}: {value}"
        name = json.dumps(next(iter(json.loads(f"{{{member}}}"))), ensure_ascii=False)
        assert member.startswith(f"{name}: ")
        members.append(f"{name}:{member.removeprefix(f'{name}: ')}")
    return f"{{{','.join(members)}}}".encode()


@settings(max_examples=2_000 if LONG else 15)
@given(pages())
@example(reviews.refund())
@example(reviews.deploy())
@example(reviews.hostile())
@example(reviews.talked())
def test_card_is_within_limits_and_has_buttons_only_for_exact_bytes(page: ReviewPage) -> None:
    message = card(page, pointer=POINTER, outbox_id="o" * 40, public_url=URL, now=NOW)
    require_sound(message)
    require_sound(minimal_card(page, outbox_id="o" * 40, public_url=URL, now=NOW))
    asks = {"approve", "deny", "ask"} & set(buttons(message.blocks))
    if no_buttons_reason(page) is not None or page.answer_by <= NOW:
        assert not asks
        return
    assert asks == {"approve", "deny", "ask"}
    assert bytes_behind(code(message.blocks), page) == page.canonical


letters = st.text("abcdefghij XYZ éöüß 0123456789.,:;!?'\"\\/(){}[]@#*_~`&", max_size=40).map(str.strip)
plain_scalars = st.none() | st.booleans() | st.integers(-(2**53), 2**53) | letters
plain_values = st.recursive(plain_scalars, lambda inner: containers(letters, inner), max_leaves=4)


@settings(max_examples=2_000 if LONG else 30)
@given(st.lists(plain_values, max_size=12), st.lists(st.booleans(), min_size=12, max_size=12))
def test_plain_content_is_shown_exactly_with_buttons(values: list[Any], secret: list[bool]) -> None:
    pairs = enumerate(zip(values, secret, strict=False))
    rows = (reviews.arg(f"arg{i}", one, "string", secret=hidden) for i, (one, hidden) in pairs)
    page = reviews.with_args(reviews.refund(), *rows)
    reason = no_buttons_reason(page)
    if reason is not None:
        assert "longer than a message" in reason or "can mislead" in reason or "cannot be seen" in reason
        return
    message = card(page, pointer=POINTER, outbox_id="o", public_url=URL, now=NOW)
    require_sound(message)
    assert bytes_behind(code(message.blocks), page) == page.canonical


@settings(max_examples=2_000 if LONG else 30)
@given(heads())
def test_form_is_within_limits(page: ReviewPage) -> None:
    for form in (views.deny_modal, views.ask_modal, views.approve_modal):
        view = form(page, POINTER)
        assert (refused_view(view), view["private_metadata"]) == ([], POINTER.value)


@settings(max_examples=2_000 if LONG else 40)
@given(long, long, long, st.none() | long)
def test_reply_is_within_limits(text: str, actor: str, channel: str, words: str | None) -> None:
    line = EventLine(NOW, "vote_recorded", text, actor, channel, actor)
    require_sound(thread_reply(line, words, review_id="r" * 40, rev=1, outbox_id="o" * 40, public_url=URL))


@settings(max_examples=2_000 if LONG else 12)
@given(few(heads(), 2, 40), st.integers(0, 10**6), st.booleans())
def test_list_is_within_limits(some: tuple[ReviewPage, ...], more: int, capped: bool) -> None:
    lines = [DigestLine(page.review_id, page.sentence, page.state, page.answer_by) for page in some]
    require_sound(digest(lines, more, digest_id="d" * 40, outbox_id="o", public_url=URL, now=NOW))
    queue = QueuePage(tuple(map(reviews.row_of, some)), None, TabCounts(me=CappedCount(more, capped)))
    require_sound(views.my_reviews_message(queue, public_url=URL))
    name = some[0].agent if some else None
    view = home_view(queue, name=name, direct=capped, public_url=URL, now=NOW, slack_note=name)
    assert refused_view(view) == []


@settings(max_examples=2_000 if LONG else 30)
@given(long, names, few(long), st.sampled_from(["release", "review", "deny"]))
def test_answer_is_within_limits(text: str, unseen: Any, texts: Any, outcome: Any) -> None:
    require_sound(views.refusal_message(text, url=URL))
    require_sound(views.text_message(text))
    tried = policies.tried(outcome=outcome, unseen=unseen, asks=texts, reasons=texts, advice=texts)
    require_sound(views.simulation_message(tried))
