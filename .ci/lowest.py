"""Prints the lowest versions that pyproject.toml allows, as constraints for pip."""

import re
import tomllib
from pathlib import Path

UNTESTED = "torch"  # an earlier one fetches gigabytes of CUDA: its bound is not tested, and it is that of constraints

bounds = tomllib.loads(Path("pyproject.toml").read_text())["project"]["dependencies"]
pairs = [re.match(r"([\w-]+)>=([\d.]+)", bound).groups() for bound in bounds]
print("\n".join(f"{name}=={version}" for name, version in pairs if name != UNTESTED))
