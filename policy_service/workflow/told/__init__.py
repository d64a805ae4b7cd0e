"""What leaves: answers to agents as the wire has them, waits, and webhooks."""
