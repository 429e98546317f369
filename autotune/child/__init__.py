"""Runs in the trial process, with torch; started by name, imported by nobody."""
