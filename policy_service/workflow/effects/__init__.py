"""An effect from its submission to the moment it may be released, and the question it asks."""
