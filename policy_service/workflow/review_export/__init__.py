"""Review exports: a review as a file that is verified without the service."""
