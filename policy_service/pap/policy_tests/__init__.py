"""The cases of a bundle: what its rules must answer, and how well the cases hold the rules."""
