"""The decision point: one question in, one decision with its reasons out. Doubt is a deny."""
