"""Ready manifests of common services, acts that have no compensation, and their loader."""
