"""Numbers in every spelling, against exact arithmetic: admitted with their exact value, or refused."""

import math
from decimal import Decimal
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from countersign.contract import MAX_SAFE_INTEGER, AdmissionError, admit, canonicalize, load

digits = st.text("0123456789", max_size=25)
signs, zeros = st.sampled_from(["", "+", "-"]), st.sampled_from(["", "0", "000"])
exponents = st.builds("{}{}{}{}".format, st.sampled_from("eE"), signs, zeros, st.integers(0, 420))
whole = st.just("0") | st.builds("{}{}".format, st.integers(1, 9), digits)
fraction = st.just("") | st.builds(".{}{}".format, st.integers(0, 9), digits)
spellings = st.builds(
    "{}{}{}{}".format, st.sampled_from(["", "-"]), whole, fraction, st.just("") | exponents
) | st.one_of(
    st.floats(allow_nan=False, allow_infinity=False).map(repr).map(lambda text: text.replace("e+", "E+")),
    st.integers(-(2**54), 2**54).map(str),
    st.integers(-(2**54), 2**54).map(lambda number: f"{number}.0"),
    st.decimals(-(2**54), 2**54, allow_nan=False, places=1).map(str),
)


def expected(text: str) -> str | Decimal:
    """The value of a spelling, or the code of its refusal, by exact arithmetic."""
    exact = Fraction(text)
    try:
        nearest = exact.numerator / exact.denominator  # correctly rounded, unlike anything we call
    except OverflowError:
        return "not_finite" if "." in text or "e" in text.lower() else "integer_out_of_range"
    if nearest.is_integer() and abs(nearest) > MAX_SAFE_INTEGER:
        return "integer_out_of_range"
    return Decimal(text) if Fraction(repr(nearest)) == exact else "number_not_exact"


EDGES = "1e20 1e21 100000000000000000000 1.0e16 9007199254740991 9007199254740992.0 -9007199254740992".split()
EDGES += "9007199254740990.6 1e-400 5e-324 2.5e-324 -0.0 0e420 1E400 0.30000000000000004".split()
EDGES += ["0.1000000000000000055511151231257827"]


@pytest.mark.parametrize("text", EDGES)
def test_boundary_number_is_admitted_exactly_or_refused(text: str) -> None:
    require_exact(text)


@given(spellings)
def test_number_is_admitted_exactly_or_refused(text: str) -> None:
    require_exact(text)


def require_exact(text: str) -> None:
    answer = expected(text)
    for before, after in (("", ""), ("[", "]"), ('{"a":[0,', "]}")):
        raw = f"{before}{text}{after}".encode()
        if isinstance(answer, str):
            with pytest.raises(AdmissionError) as refused:
                load(raw)
            assert refused.value.code == answer
        else:
            written = canonicalize(load(raw)).decode()
            kept = written[len(before) : len(written) - len(after)]
            assert (Decimal(kept), canonicalize(load(kept.encode())).decode()) == (answer, kept)


@given(st.floats() | st.integers().map(float))
def test_python_float_is_admitted_like_its_shortest_spelling(number: float) -> None:
    if not math.isfinite(number):
        code = "not_finite"
    elif number.is_integer() and abs(number) > MAX_SAFE_INTEGER:
        code = "integer_out_of_range"
    else:
        assert canonicalize(admit([number])) == canonicalize(load(f"[{number!r}]".encode()))
        return
    with pytest.raises(AdmissionError) as refused:
        admit([number])
    assert refused.value.code == code
