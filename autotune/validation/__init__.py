"""Validates the best configurations, decides, and builds the profile."""
