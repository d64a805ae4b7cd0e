"""Live effects: they run at once and can be undone (README.md)."""
