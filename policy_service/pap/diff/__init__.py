"""What changes between two bundles, what a recorded call would come to, and why one call came to what it did."""
