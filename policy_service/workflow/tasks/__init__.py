"""Tasks: what nobody but a person can tell, and the word that settles it."""
