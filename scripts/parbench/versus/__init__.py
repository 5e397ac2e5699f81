"""Compare any two training scripts: `make versus` (docs/versus.md)."""
