"""After a crash: roll redeemed transactions forward, and others back (README.md)."""
