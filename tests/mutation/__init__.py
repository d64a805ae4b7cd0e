"""How sharp the suite is: a drawn set of small faults (mutants) in both packages, and the tests that find them."""
