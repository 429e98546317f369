"""A profile as text, HTML and Markdown."""
