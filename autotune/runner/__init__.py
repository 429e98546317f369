"""Starts, sandboxes, watches and ends trial processes, and says why one failed."""
