"""Running a step without consequences: beforehand (dry run), or again (replay)."""
