"""One step of an agent: the calls it makes, in order, until it commits or rolls back (README.md)."""
