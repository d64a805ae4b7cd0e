"""Ways in and out. Channels translate between a medium and workflow verbs; they never decide."""
