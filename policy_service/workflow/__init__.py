"""The verbs of the service: each combines facts, a decision and one unit of work. Channels and jobs call them."""
