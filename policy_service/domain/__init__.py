"""The rules, pure: facts and a time go in, facts come out. No IO, clock, framework or randomness."""
