"""From a frozen list to what stands: asked, verified, redeemed, fired, settled (README.md)."""
