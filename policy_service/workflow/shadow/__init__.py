"""Shadow: candidate bundles evaluated on real traffic, without effect."""
