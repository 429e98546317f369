"""What is added while dltune is built: its manual, and the address of the repository that a release is built in."""

import os
import re
import sys
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from hatchling.metadata.plugin.interface import MetadataHookInterface

RELATIVE_LINK = re.compile(r"(?P<image>!?)(?P<text>\[[^]]*\])\((?P<path>(?![a-z]+:|#)[^)]+)\)")


class ManPage(BuildHookInterface[Any]):
    """Writes the manual page from the commands."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Write it, unless the sources are only to be linked to."""
        if version == "editable":
            return
        sys.path.insert(0, self.root)
        from autotune.cli.main import cli
        from autotune.cli.man_page import write_man_page

        self._folder = tempfile.TemporaryDirectory()
        page = Path(self._folder.name, "dltune.1")
        page.write_text(write_man_page(cli, "dltune", self.metadata.version))
        build_data["shared_data"][str(page)] = "share/man/man1/dltune.1"


class Repository(MetadataHookInterface):
    """Names the repository that a release is built in (DLTUNE_REPOSITORY), and makes the readme's links lead there.

    The readme is PyPI's page, where links relative to a repository lead nowhere.
    """

    def update(self, metadata: dict[str, Any]) -> None:
        """Set the readme and the addresses."""
        readme = Path(self.root, "README.md").read_text()
        address = os.environ.get("DLTUNE_REPOSITORY")
        metadata["urls"] = {}
        if address is not None:
            at_version = {"": f"{address}/blob/v{metadata['version']}", "!": f"{address}/raw/v{metadata['version']}"}
            readme = RELATIVE_LINK.sub(
                lambda link: f"{link['image']}{link['text']}({at_version[link['image']]}/{link['path']})", readme
            )
            metadata["urls"] = {
                "Repository": address,
                "Changelog": f"{address}/blob/HEAD/CHANGELOG.md",
                "Issues": f"{address}/issues",
            }
        metadata["readme"] = {"content-type": "text/markdown", "text": readme}
