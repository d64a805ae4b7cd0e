"""The demo: a support desk whose agent refunds and writes mail behind Countersign."""
