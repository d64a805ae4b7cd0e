"""The airline of tau-bench behind Countersign: its database, its write tools, and a replay of recorded runs.

The rules live in `policies/examples/airline`; nothing in this package decides anything.
"""
