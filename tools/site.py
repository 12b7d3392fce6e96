"""The hook of mkdocs.yml: files outside docs/ that pages link to become part of the site.

A page links to a file as it lies in the repository, so that the link works there, too. On the site
docs/ is the root, and every other file keeps its path: `../results/sample.svg` of docs/measuring.md
is `results/sample.svg`. Pages outside docs/ (Markdown) are shown as pages, all else as files.
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
OUTSIDE = ("CONTRIBUTING.md", "CHANGELOG.md")
"""Pages of the site that need not be linked to from docs/."""
LINK = re.compile(r"(?<=\]\()(?P<path>[^)\s#:]+)(?P<anchor>#[^)\s]*)?(?=\))")


def repository() -> str:
    """The address of the repository: `Repository` under `[project.urls]` of pyproject.toml, the
    only place that has it; "" where it has none."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return str(project.get("urls", {}).get("Repository", "")).rstrip("/")


def on_config(config: Any) -> Any:
    """Link the repository, where it has an address."""
    if address := repository():
        config["repo_url"], config["repo_name"] = address, config["site_name"]
    return config


def site_path(path: str) -> str:
    """Where a file of the repository lies on the site. The README is its first page."""
    return "index.md" if path == "README.md" else path.removeprefix("docs/")


def repository_path(path: str) -> str:
    """The file of the repository that a path of the site stands for."""
    return f"docs/{path}" if (ROOT / "docs" / path).is_file() else path


def target(page: str, link: str) -> str:
    """The file of the repository that a link of a page leads to, of a package its `__init__.py`;
    "" where there is none."""
    path = os.path.normpath(PurePosixPath(page).parent / link)
    found = (p for p in (path, f"{path}/__init__.py") if (ROOT / p).is_file())
    return next(found, "")


def targets(page: str) -> Iterator[str]:
    """The files that a page links to."""
    if page.endswith(".md"):
        for match in LINK.finditer((ROOT / page).read_text(encoding="utf-8")):
            if found := target(page, match["path"]):
                yield found


def linked_files(pages: list[str]) -> list[str]:
    """Files outside docs/ that pages link to, and what these link to in turn."""
    found, left = set(pages), list(pages)
    while left:
        new = set(targets(left.pop())) - found
        found |= new
        left += new
    return sorted(path for path in found
                  if not path.startswith("docs/") and path != "README.md")


def rewritten(markdown: str, page: str) -> str:
    """A page's text whose links to files of the repository are those of the site."""
    here = PurePosixPath(site_path(page)).parent

    def on_site(match: re.Match[str]) -> str:
        found = target(page, match["path"])
        path = os.path.relpath(site_path(found), here) if found else match["path"]
        return path + (match["anchor"] or "")

    return LINK.sub(on_site, markdown)


def on_files(files: Any, config: Any) -> Any:
    """Add what pages link to."""
    from mkdocs.structure.files import File

    pages = [f"docs/{file.src_uri}" for file in files.documentation_pages()]
    for path in linked_files([*pages, *OUTSIDE]):
        files.append(File.generated(config, path, abs_src_path=str(ROOT / path)))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Rewrite the links of a page."""
    return rewritten(markdown, repository_path(page.file.src_uri))
