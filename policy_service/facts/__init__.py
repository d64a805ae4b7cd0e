"""The information point: manifests, entities and groups, from the service's own sources only."""
