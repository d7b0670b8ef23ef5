"""Notebooks as pages of the documentation site: a hook of MkDocs, run by `make docs`.

A notebook becomes Markdown: its texts as they are, its code in fences, its stored outputs below. They
are stored by `python -m tools.notebooks`, so the site is built without a model.
"""

from __future__ import annotations

import json
from html import escape
from typing import TYPE_CHECKING, Any

from mkdocs.structure.files import File

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

ENDING = ".ipynb"


class Notebook(File):
    """A file that becomes a page, as Markdown does."""

    def is_documentation_page(self) -> bool:
        return True

    @property
    def name(self) -> str:
        """The file's name without its ending, of which the page's address is made."""
        return self.src_uri.rpartition("/")[2].removesuffix(ENDING)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Takes notebooks for pages."""
    for file in [file for file in files if file.src_uri.endswith(ENDING)]:
        files.remove(file)
        files.append(
            Notebook(file.src_uri, config.docs_dir, config.site_dir, config.use_directory_urls)
        )
    return files


def on_page_read_source(page: Page, config: MkDocsConfig) -> str | None:
    """The Markdown of a notebook; of other pages MkDocs reads it itself."""
    if not isinstance(page.file, Notebook):
        return None
    notebook = json.loads(page.file.content_string)
    return "\n\n".join(part for cell in notebook["cells"] for part in parts(cell))


def parts(cell: dict[str, Any]) -> list[str]:
    """A cell as pieces of Markdown."""
    source = "".join(cell["source"]).strip()
    if cell["cell_type"] != "code":
        return [source]
    return [f"```python\n{source}\n```", *map(output, cell["outputs"])]


def output(stored: dict[str, Any]) -> str:
    """What a cell printed or showed, as a block that Markdown leaves alone."""
    data = stored.get("data", {})
    if "text/html" in data:
        # Markdown ends a block of HTML at an empty line
        shown = "\n".join(line for line in "".join(data["text/html"]).splitlines() if line.strip())
        return f'<div class="output">{shown}</div>'
    text = "".join(stored["text"] if "text" in stored else data["text/plain"])
    return f'<pre class="output"><code>{escape(text.rstrip())}</code></pre>'
