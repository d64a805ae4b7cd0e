"""What the vectors are made from: a fixed world, and one module for each kind of file."""
