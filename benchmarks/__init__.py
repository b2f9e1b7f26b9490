"""What `antiphon bench` runs: latency and accuracy, ours beside a peer in one run."""
