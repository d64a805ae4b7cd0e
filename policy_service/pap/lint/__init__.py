"""What can be proved wrong, or looks wrong, in a bundle that is valid."""
