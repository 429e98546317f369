"""Hooks of mkdocs for the documentation site."""
