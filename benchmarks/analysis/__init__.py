"""What the raw records say, each question in a file."""
