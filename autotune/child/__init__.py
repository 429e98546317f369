"""Runs in the trial process, with torch; started by name, no module imports it."""
