"""Measurements of dltune itself.

`suite` (and `gpu`) compare choices and predictions with whole training runs, `libraries` does so with the loaders of
other libraries, `false_alarms` checks the warnings on healthy datasets, `replay` compares samplers on the grids in
`traces/`, and `coverage` simulates the intervals.
"""
