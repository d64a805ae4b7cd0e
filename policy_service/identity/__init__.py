"""Who is calling: agents and their keys and proofs, people and their sessions."""
