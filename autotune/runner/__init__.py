"""Starts, limits and ends trials, and explains why one failed."""
