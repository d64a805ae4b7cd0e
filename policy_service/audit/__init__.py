"""The append-only log: rows written with each change, a sequencer that numbers them, a feed."""
