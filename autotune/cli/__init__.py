"""The commands of the command line, their parameters and the live display."""
