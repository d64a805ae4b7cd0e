"""Run a step without side effects: in advance (dry run), or again (replay)."""
