"""From values to what a template needs, and back from what a form holds. Pure."""
