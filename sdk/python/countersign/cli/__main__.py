"""`python -m countersign.cli`: the command, where its script is not on the path."""

from countersign.cli.app import app

app()
