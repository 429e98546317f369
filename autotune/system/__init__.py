"""Limits and resources of this machine and its container, read from /proc, cgroups and the driver, never torch."""
