"""What is known: typed, frozen, sourced descriptions of models, hardware, workloads and engines."""
