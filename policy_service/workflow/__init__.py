"""The verbs, one a file: each joins facts, a decision and one unit of work. Channels call these."""
