"""From read models to Slack's blocks. Pure."""
