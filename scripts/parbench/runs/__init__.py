"""What runs measured, as readers see it: records of metrics.json, and the metrics in them."""
