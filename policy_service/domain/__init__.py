"""The rules, as pure functions: no IO, clock, framework or randomness."""
