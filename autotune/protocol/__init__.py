"""The contract between tuner and child: what is asked, what is measured, under which budgets, and what it says."""
