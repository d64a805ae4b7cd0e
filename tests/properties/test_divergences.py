"""The divergences of a replay account for every call that differs."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from countersign.simulation.recording import RecordedCall
from countersign.simulation.replay_report import ReplayCall, compare_calls

NAMES = st.lists(st.sampled_from("abcde"), max_size=8)


def recorded(names: list[str]) -> list[RecordedCall]:
    return [
        RecordedCall(
            lane="staged", seq=n, tool=f"tool_{name}", effect_id=f"e-{n}", call_key=name, args="{}", state="fired",
            result=None, error=None,
        )
        for n, name in enumerate(names, start=1)
    ]  # fmt: skip


def called(names: list[str]) -> list[ReplayCall]:
    return [ReplayCall(f"tool_{name}", name, b"{}", ()) for name in names]


@given(NAMES, NAMES)
def test_divergences_account_for_every_call(then: list[str], now: list[str]) -> None:
    """Removing the missing and changed calls from the record, and the new and changed ones from the replay, leaves the
    same calls in the same order."""
    assert list(compare_calls("staged", recorded(then), called(then))) == []
    found = list(compare_calls("staged", recorded(then), called(now)))
    kinds = Counter(one.kind for one in found)
    assert len(then) - kinds["missing"] == len(now) - kinds["extra"]
    assert bool(found) is (then != now)
    named = {one.position for one in found if one.kind in {"extra", "changed"}}
    rest = [name for n, name in enumerate(now, start=1) if n not in named]
    gone = Counter(then) - Counter(rest)
    removed = Counter(one.tool[-1] for one in found if one.kind == "missing")
    removed += Counter(one.text.split()[1][-1] for one in found if one.kind == "changed")
    assert gone == removed
