"""Reviewed tool manifests, and drafts for review (README.md)."""
