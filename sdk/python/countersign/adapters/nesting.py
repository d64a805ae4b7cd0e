"""The exam's chapters about nesting: effects inside effects (a live tool may call another), and blocks of effects."""

from __future__ import annotations

from pathlib import Path

from countersign.adapters.examined import CALL, A, Examined, block, commit, equal, interrupt, raises


class Nesting(Examined):
    """What raises is taken back alone, and what goes on is still inside."""

    def test_an_effect_inside_another_leaves_the_outer_one_as_it_was_and_inside(self, tmp_path: Path) -> None:
        resource, adapter, session = self.begun(tmp_path, k="old")
        with raises(ZeroDivisionError), session.effect(CALL):
            resource.write(adapter, "outer", "half")
            with session.effect(CALL):
                resource.write(adapter, "k", "half")
                equal(resource.read(adapter, "outer"), "half", "inside the inner one")
            resource.write(adapter, "more", "half")
            interrupt(ZeroDivisionError)
        with session.effect(CALL):
            seen = [resource.read(adapter, key) for key in ("k", "outer", "more")]
            equal(seen, ["old", None, None], "after the outer one raised")
        session.prepare(A)
        commit(session)
        seen = [resource.outside(key) for key in ("k", "outer", "more")]
        equal(seen, ["old", None, None], "after the commit")

    def test_an_effect_inside_another_that_raises_is_taken_back_alone(self, tmp_path: Path) -> None:
        resource, adapter, session = self.begun(tmp_path, k="old")
        with session.effect(CALL):
            resource.write(adapter, "outer", "new")
            with raises(KeyboardInterrupt), session.effect(CALL):
                resource.write(adapter, "k", "half")
                resource.remove(adapter, "outer")
                interrupt(KeyboardInterrupt)
            seen = [resource.read(adapter, key) for key in ("k", "outer")]
            equal(seen, ["old", "new"], "after the inner one")
            resource.write(adapter, "more", "new")
        session.prepare(A)
        commit(session)
        seen = [resource.outside(key) for key in ("k", "outer", "more")]
        equal(seen, ["old", "new", "new"], "after the commit")

    def test_the_state_diff_tells_of_what_came_before_inside_and_after_an_inner_effect(
        self, tmp_path: Path
    ) -> None:
        resource, adapter, session = self.begun(tmp_path)
        with session.effect(CALL):
            resource.write(adapter, "outer", "new")
            with session.effect(CALL):
                resource.write(adapter, "inner", "new")
            resource.write(adapter, "after", "new")
        changes = session.changes()
        told = None if changes is None else sorted(resource.told(one)[0] for one in changes)
        equal(told, ["after", "inner", "outer"] if resource.tells_changes else None, "changes()")
        session.undo()

    def test_a_block_of_effects_that_raises_leaves_nothing_of_them_and_all_of_the_others(
        self, tmp_path: Path
    ) -> None:
        resource, adapter, session = self.begun(tmp_path, k="old")
        if not self.has_savepoints(session):
            session.undo()
            return
        with session.effect(CALL):
            resource.write(adapter, "kept", "new")
        with block(session):
            with session.effect(CALL):
                resource.write(adapter, "outer", "new")
            with raises(KeyboardInterrupt), block(session):
                with session.effect(CALL):
                    resource.write(adapter, "k", "half")
                with session.effect(CALL):
                    resource.write(adapter, "outer", "half")
                    resource.remove(adapter, "kept")
                interrupt(KeyboardInterrupt)
            with session.effect(CALL):
                seen = [resource.read(adapter, key) for key in ("k", "outer", "kept")]
                equal(seen, ["old", "new", "new"], "after the inner block")
        session.prepare(A)
        commit(session)
        seen = [resource.outside(key) for key in ("k", "outer", "kept")]
        equal(seen, ["old", "new", "new"], "after the commit")

    def test_blocks_that_all_raise_leave_the_session_as_it_was(self, tmp_path: Path) -> None:
        resource, adapter, session = self.begun(tmp_path, k="old")
        if self.has_savepoints(session):
            with session.effect(CALL):
                resource.write(adapter, "kept", "new")
            with raises(ZeroDivisionError), block(session), block(session):
                with session.effect(CALL):
                    resource.write(adapter, "k", "half")
                interrupt(ZeroDivisionError)
            session.prepare(A)
            commit(session)
            equal((resource.outside("k"), resource.outside("kept")), ("old", "new"), "after the commit")
        session.undo()
