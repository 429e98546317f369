"""Plans a run before its first trial: search space, predictions, limits and the baseline."""
