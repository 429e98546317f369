"""The contract between tuner and child: messages, measurements, their statistics and budgets."""
