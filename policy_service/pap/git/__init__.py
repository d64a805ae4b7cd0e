"""Bundles from git: which commit of a branch or tag may be activated, and its bytes."""
