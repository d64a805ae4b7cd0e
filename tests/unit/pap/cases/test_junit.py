"""JUnit XML of cases that machines read: valid whatever a case is called."""

from pathlib import Path
from xml.etree import ElementTree as Xml

from policy_service.pap.cases.junit import junit
from tests.fakes.cases import HEAD, ask, small_bundle


def test_each_file_is_a_suite_and_each_case_a_test(tmp_path: Path) -> None:
    text = f"{HEAD}  - {{it: holds, expect: release}}\n  - {{it: does not, expect: deny, reasons: [no_permit]}}\n"
    root = Xml.fromstring(junit(ask(small_bundle(tmp_path), text)))
    assert root.attrib == {"tests": "2", "failures": "1"}
    (suite,) = root
    assert suite.attrib == {"name": "cases/a.yaml", "tests": "2", "failures": "1", "errors": "0"}
    good, bad = suite
    assert (good.get("name"), good.get("line"), len(good)) == ("holds", "8", 0)
    (failure,) = bad
    assert failure.get("message") == "expect: found release, expected deny"
    assert str(failure.text).splitlines()[0] == "cases/a.yaml:9"


def test_a_name_cannot_break_out(tmp_path: Path) -> None:
    name = '"]]><!-- & <case> \\u0001 \\ufffe'
    written = '"' + name.replace('"', '\\"', 1) + '"'
    answered = ask(small_bundle(tmp_path), f"{HEAD}  - it: {written}\n    expect: release\n")
    report = junit(answered)
    (test,) = Xml.fromstring(report).iter("testcase")
    assert str(test.get("name")).startswith('"]]><!-- & <case> \ufffd')


def test_without_cases_it_is_an_empty_report() -> None:
    assert Xml.fromstring(junit([])).attrib == {"tests": "0", "failures": "0"}
