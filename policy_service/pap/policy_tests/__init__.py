"""Policy tests: the cases of a bundle, and how well they cover its rules."""
