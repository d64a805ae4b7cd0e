"""The policy information point: manifests, entities, groups and meters, from the service's own sources only."""
