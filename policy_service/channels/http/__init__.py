"""The native API under /v1: JSON to commands, views to JSON, errors to problem details."""
