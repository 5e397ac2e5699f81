"""Any two training scripts against each other: `make versus` (docs/versus.md)."""
