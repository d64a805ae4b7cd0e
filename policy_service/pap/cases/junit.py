"""The cases as JUnit XML, for the machines that show test results."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final
from xml.etree import ElementTree as Xml

from policy_service.pap.cases.running import Answered

_NOT_IN_XML: Final = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def junit(answered: Sequence[Answered]) -> bytes:
    """One suite for each file of cases, one test case for each case. What XML cannot hold is shown as U+FFFD."""
    root = Xml.Element("testsuites", tests=str(len(answered)), failures=str(_failures(answered)))
    for file in dict.fromkeys(each.case.file for each in answered):
        of_file = [each for each in answered if each.case.file == file]
        suite = Xml.SubElement(
            root,
            "testsuite",
            name=_xml(file),
            tests=str(len(of_file)),
            failures=str(_failures(of_file)),
            errors="0",
        )
        for each in of_file:
            _test_case(suite, each)
    Xml.indent(root)
    return bytes(Xml.tostring(root, encoding="utf-8", xml_declaration=True))


def _test_case(suite: Xml.Element, answered: Answered) -> None:
    case = answered.case
    test = Xml.SubElement(suite, "testcase", name=_xml(case.it), classname=_xml(case.file))
    test.set("file", _xml(case.file))
    test.set("line", str(case.line))
    if not answered.holds:
        failure = Xml.SubElement(test, "failure", message=_xml(answered.differences[0]))
        failure.text = _xml("\n".join((case.place, *answered.differences)))


def _failures(answered: Sequence[Answered]) -> int:
    return sum(not each.holds for each in answered)


def _xml(text: str) -> str:
    return _NOT_IN_XML.sub("\ufffd", text)
