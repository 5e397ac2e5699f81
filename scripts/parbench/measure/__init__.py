"""Measurements: clocks, memory, energy, the machine; reading and writing metrics.json."""
