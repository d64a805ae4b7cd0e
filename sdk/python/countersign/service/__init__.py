"""The other party, as this side sees it: asked, carried, and believed only by signature (README.md)."""
