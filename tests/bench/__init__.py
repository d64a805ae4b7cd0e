"""`make bench`: what Countersign costs, as ratios to something everybody knows, measured in the same run."""
