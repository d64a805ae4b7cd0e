"""One step of an agent: what it asks for, in order, until it commits or rolls back (README.md)."""
