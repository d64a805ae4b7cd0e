"""What a task asks is one sentence for every kind there is, the same on its page and in the log of `dev`."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from countersign.contract import TaskKind
from policy_service.channels.operator.dev.telling import tell_task
from policy_service.channels.showing.questions import question_text
from policy_service.channels.web.drawing.task_views import question

URL = "http://127.0.0.1:1/tasks/task_1"


@pytest.mark.parametrize("of_compensation", [False, True])
@pytest.mark.parametrize("kind", TaskKind)
def test_every_kind_of_task_has_its_sentence_wherever_it_is_told(
    kind: TaskKind, of_compensation: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = question_text(kind, of_compensation=of_compensation)
    task = SimpleNamespace(kind=kind.value, of_compensation=of_compensation)
    shown = question(cast("Any", task))
    tell_task("refund", kind, URL, of_compensation=of_compensation)
    said = "".join(capsys.readouterr())
    assert shown.text == asked and len(shown.tag.split()) <= 2
    assert f"refund: {asked[0].lower()}{asked[1:]}" in said
    assert f" settle it here: {URL}" in said
    assert "_" not in asked and "?;" not in said


@pytest.mark.parametrize("kind", [TaskKind.UNKNOWN, TaskKind.RESTORED])
def test_a_doubt_about_a_compensation_is_not_told_as_one_about_the_effect(kind: TaskKind) -> None:
    assert "taken back" in question_text(kind, of_compensation=True)
    assert "taken back" not in question_text(kind, of_compensation=False)
    assert "fired" in question_text(TaskKind.STANDING, of_compensation=True)
