"""Commands for operators, through the service's Unix socket while it runs, and `policy-service dev`."""
