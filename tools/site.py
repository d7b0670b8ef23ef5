"""Notebooks as pages of the documentation site: a hook of MkDocs, run by `make docs`.

`make -C tools notebooks` stores what the cells of a notebook print and show in it, so the site
is built without a model. Results of the reproduction lie beside `docs/`: they are copied into it.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from mkdocs.structure.files import File

from tools.notebooks import markdown

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

ENDING = ".ipynb"
RESULTS = "reproduction/results"


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
    return markdown(notebook)


def on_page_content(html: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Links to the results of the reproduction lead to their copies in the site."""
    return html.replace(f'"../{RESULTS}', f'"{RESULTS}')


def on_post_build(config: MkDocsConfig) -> None:
    """Copies the results of the reproduction into the site."""
    source = Path(config.docs_dir).parent / RESULTS
    shutil.copytree(source, Path(config.site_dir) / RESULTS)
