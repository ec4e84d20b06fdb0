"""What production set-ups need: resources, Prometheus, ids in logs."""
