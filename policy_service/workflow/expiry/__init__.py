"""What time does: rows that are due, and what happens to them."""
