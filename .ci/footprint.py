"""Which packages does dltune bring into an environment beside torch, Optuna and what they need themselves?"""

import sys
from importlib.metadata import Distribution, distributions
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

(site_packages,) = Path(sys.argv[1]).glob("lib/python3*/site-packages")
INSTALLED = {canonicalize_name(found.metadata["Name"]): found for found in distributions(path=[str(site_packages)])}


def list_needs(name: str, known: frozenset[str] = frozenset()) -> frozenset[str]:
    """List what a distribution needs of those that are installed, itself included."""
    if name in known or name not in INSTALLED:
        return known
    known |= {name}
    requirements = [Requirement(text) for text in INSTALLED[name].requires or ()]
    for requirement in requirements:
        if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
            known = list_needs(canonicalize_name(requirement.name), known)
    return known


def measure(found: Distribution) -> float:
    """Measure the files of a distribution, in MB."""
    return sum(file.size or 0 for file in found.files or ()) / 1e6


others = list_needs("dltune") - list_needs("torch") - list_needs("optuna") - {"dltune"}
size = sum(measure(INSTALLED[name]) for name in others)
names = ", ".join(f"{name} {INSTALLED[name].version}" for name in sorted(others))
print(f"dltune itself: {measure(INSTALLED['dltune']):.1f} MB installed")
print(f"beside torch and optuna: {len(others)} packages, {size:.1f} MB installed: {names}")
