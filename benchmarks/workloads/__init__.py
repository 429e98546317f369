"""What is loaded and trained on, and the configurations that each workload is tried with."""
