"""After the process that began it: forward what was redeemed, back what was not (README.md)."""
