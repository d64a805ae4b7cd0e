"""The client of the policy service: transport, typed calls, and verification of everything it signs (README.md)."""
