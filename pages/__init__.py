"""Writes what the documentation site takes from the code and from kept results, so that it cannot say anything else.

python -m pages            # writes those parts of the pages that stand in the repository again
make docs                  # builds the site, with all parts
"""
