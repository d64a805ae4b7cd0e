"""The operator's way in: verbs of the command line, through a socket when the service runs."""
