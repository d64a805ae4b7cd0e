"""The REST API under /v1: JSON to workflow calls, read models to JSON, errors to problem details."""
