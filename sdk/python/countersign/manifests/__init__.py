"""What people reviewed about a tool, and drafts for them to review (README.md)."""
