"""Signing keys, releases, receipts, JWKS and the epoch: the only reader of private keys."""
