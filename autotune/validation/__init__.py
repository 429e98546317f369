"""Measures the finalists again, decides, and explains."""
