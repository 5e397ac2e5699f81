"""Proof that every strategy computes what eager training does."""
