"""Worked examples: a support desk to try by hand, and an airline whose recorded agent runs are replayed."""
