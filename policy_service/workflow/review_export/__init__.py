"""Proofs: a review as a file that shows its own decision, checked without the service."""
