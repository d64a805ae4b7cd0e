"""From a frozen list to a final state: submit, verify, redeem, fire, finalize (README.md)."""
