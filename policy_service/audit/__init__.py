"""The append-only audit log: its rows, the sequencer that numbers them, and the feed."""
