"""A service of one's own for tests of an agent's rules: what the pytest plugin's fixtures are made of.

The SDK never imports the service: it starts the installed one as an operator would, in a process of its own.
"""
