"""Edits: a reviewer proposes other arguments, the agent or its owner takes them or does not."""
