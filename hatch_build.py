"""The README as package indexes show it: they resolve no relative link.

Links become addresses of files in the repository, as of the version's tag, if `Repository` under
[project.urls] in pyproject.toml says where that is (GitHub's and GitLab's form).
"""

import re
from pathlib import Path

from hatchling.metadata.plugin.interface import MetadataHookInterface


class Readme(MetadataHookInterface):
    """Sets `project.readme`."""

    def update(self, metadata: dict) -> None:
        """Pages are linked where they are shown (`blob`), pictures where they lie (`raw`)."""
        text = Path(self.root, "README.md").read_text(encoding="utf-8")
        repository = metadata.get("urls", {}).get("Repository")

        def absolute(link: re.Match[str]) -> str:
            kind = "raw" if link["picture"] else "blob"
            return f"{link['start']}{repository}/{kind}/v{metadata['version']}/{link['path']}"

        if repository:
            relative = r"(?P<start>(?P<picture>!)?\[[^]]*\]\()(?P<path>(?!https?:|#|/)[^)]+)"
            text = re.sub(relative, absolute, text)
        metadata["readme"] = {"content-type": "text/markdown", "text": text}
