"""The documentation as a site: `make docs`."""

import re
from typing import Any

from paint.core.versions import __version__ as release

project = "PAINT"
language = "en"
root_doc = "index"
extensions = ["myst_parser", "sphinx_copybutton"]

myst_heading_anchors = 4

html_theme = "furo"
html_title = f"PAINT {release}"
html_copy_source = False
html_show_sourcelink = False
html_static_path = ["_static"]
html_css_files = ["site.css"]
highlight_language = "text"  # of blocks that name none


def add_navigation(app: Any, page: str, source: list[str]) -> None:
    """Make the lists of index.md the sidebar's sections."""
    if page == "index":
        for section in source[0].split("\n## ")[1:]:
            caption, _, text = section.partition("\n")
            lists = text.partition("\n- ")[2]
            pages = re.findall(r"\]\(([\w/-]+)\.md\)", lists)
            if pages:
                entries = "\n".join(pages)
                source[0] += f"\n```{{toctree}}\n:hidden:\n:caption: {caption}\n\n{entries}\n```\n"


def setup(app: Any) -> None:
    """Register what is done to pages."""
    app.connect("source-read", add_navigation)
