"""Pages: what is read to fill them, and by which keys."""
