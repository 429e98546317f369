"""Do the wheel and the sdist in dist/ hold what they should, and nothing else?"""

import re
import sys
import tarfile
import zipfile
from pathlib import Path

BESIDE_THE_PACKAGE = re.compile(r"dltune-[^/]+\.dist-info/.+|dltune-[^/]+\.data/data/share/man/man1/dltune\.1")
NEEDED = {"pyproject.toml", "hatch_build.py", "README.md", "LICENSE", "Makefile", "constraints.txt", ".ci/run"}
LEFT_BY_A_RUN = re.compile(r".*(__pycache__/|\.pyc|\.db)|(.*/)?\.(venv|data|dltune|git|hypothesis)\b.*/.*|dltune\.json")


def list_files(folder: str) -> set[str]:
    """List the files of a folder of the sources."""
    return {str(path) for path in Path(folder).rglob("*") if path.is_file() and "__pycache__" not in path.parts}


(wheel,) = Path("dist").glob("*.whl")
(sdist,) = Path("dist").glob("*.tar.gz")
package = list_files("autotune")
in_wheel = set(zipfile.ZipFile(wheel).namelist())
with tarfile.open(sdist) as archive:
    in_sdist = {name.partition("/")[2] for name in archive.getnames()}
wrong = {
    "missing from the wheel": package - in_wheel,
    "not to be in the wheel": {name for name in in_wheel - package if not BESIDE_THE_PACKAGE.fullmatch(name)},
    "missing from the sdist": (package | list_files("tests") | NEEDED) - in_sdist,
    "not to be in the sdist": {name for name in in_sdist if LEFT_BY_A_RUN.fullmatch(name)},
}
for what, names in wrong.items():
    if names:
        print(f"{what}: {', '.join(sorted(names))}")
if any(wrong.values()) or not any(name.endswith("/dltune.1") for name in in_wheel):
    sys.exit("The wheel or the sdist does not hold what it should.")
for built, names in ((wheel, in_wheel), (sdist, in_sdist)):
    print(f"{built.name}: {len(names)} files, {built.stat().st_size / 1000:.0f} kB")
