"""Compare two bundles, replay recorded calls, and explain one decision."""
