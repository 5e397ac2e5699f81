"""What is measured and how: clocks, memory, energy, the machine; the shape of metrics.json."""
