"""Read what runs measured: records of metrics.json, and the metrics in them."""
