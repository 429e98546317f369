"""Prints what CHANGELOG.md says of a version, for a tag such as v0.1.0 that is the version of pyproject.toml."""

import re
import sys
import tomllib
from pathlib import Path

tag = sys.argv[1]

version = tomllib.loads(Path("pyproject.toml").read_text())["project"]["version"]
if f"v{version}" != tag:
    sys.exit(f"The tag is {tag}, but pyproject.toml says {version}: name the tag v{version}, or change the version.")

sections = re.split(r"^## ", Path("CHANGELOG.md").read_text(), flags=re.MULTILINE)[1:]
notes = "".join(section.partition("\n")[2] for section in sections if section.startswith(f"[{version}]")).strip()
if not notes:
    sys.exit(f"CHANGELOG.md says nothing of {version}: call its section [Unreleased] '[{version}] - YYYY-MM-DD'.")
print(notes)
