"""Bundles from git: which commit of a branch or tag may come into force, and its bytes."""
