"""What an author of policies asks from the command line; nothing here needs a running service."""
