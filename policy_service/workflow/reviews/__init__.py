"""Reviews: votes, comments, and reviews that cannot be satisfied."""
