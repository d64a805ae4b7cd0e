"""Ready manifests of common services, and the acts that deliberately have no compensation: data with its reader."""
