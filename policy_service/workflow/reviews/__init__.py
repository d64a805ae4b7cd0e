"""Reviews: votes, who may cast them, what they were shown, and what people say meanwhile."""
