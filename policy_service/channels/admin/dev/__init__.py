"""`policy-service dev`: the service, an agent's script and a starter policy in one terminal, for development."""
