"""`python -m countersign.cli`: the command, if its script is not on the path."""

from countersign.cli.app import app

app()
