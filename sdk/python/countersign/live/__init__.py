"""The live lane: effects that run at once and can be undone (README.md)."""
