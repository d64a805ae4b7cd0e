"""Effects, from evaluation to release or end, with their reviews."""
