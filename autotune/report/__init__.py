"""Reports of a tuned profile: sections made once, printed as text, HTML and Markdown."""
