"""Executed notebooks as pages: by nbconvert, with formulas as MathML, so that nothing is loaded from anywhere."""

import re
from pathlib import Path

from latex2mathml.converter import convert as to_mathml
from markupsafe import Markup
from nbconvert.exporters import HTMLExporter
from nbconvert.filters.markdown_mistune import IPythonRenderer, MarkdownWithMath
from nbformat import NotebookNode
from nbformat.v4.rwbase import rejoin_lines
from pygments.formatters import HtmlFormatter

from ident_utils.notebooks import notebook_paths, read_notebook, title
from ident_utils.paths import runs_root
from ident_utils.results import write_atomically
from ident_utils.settings import Settings

LINK = re.compile(r'href="(\d\d_\w+)\.ipynb([#"])')
STARRED = re.compile(r"\\operatorname\*\{([^}]*)\}_(\w|\{[^}]*\})")  # the converter knows it without a star only
CODE_LIGHT, CODE_DARK = "xcode", "github-dark"


def write_pages(settings: Settings, folder: Path) -> list[str]:
    """Write a page for every notebook that has outputs for these settings and return the notebooks' names.

    Outputs come from the executed copies; where there are none, from the committed notebooks if the profile is
    ``base``, whose outputs they hold.
    """
    from ident_utils.report.build import render

    found = executed(settings)
    names = [path.stem for path in found]
    exporter = _exporter()
    for i, path in enumerate(found):
        page = render(
            "notebook.html.j2",
            title=title(path),
            content=Markup(page_body(exporter, rejoin_lines(read_notebook(path)))),
            highlighting=Markup(_highlighting()),
            before=names[i - 1] if i else None,
            after=names[i + 1] if i + 1 < len(names) else None,
        )
        write_atomically(folder / f"{path.stem}.html", page)
    return names


def executed(settings: Settings) -> list[Path]:
    """List the notebooks with outputs for these settings, in order."""
    copies = runs_root() / settings.folder.name
    found = [copies / path.name for path in notebook_paths() if (copies / path.name).is_file()]
    return found or (notebook_paths() if settings.folder.name == "base" else [])


def page_body(exporter: HTMLExporter, notebook: NotebookNode) -> str:
    """Return a notebook as HTML without head; the same notebook gives the same text."""
    for number, cell in enumerate(notebook.cells):
        cell["id"] = f"cell-{number:02d}"
    body, _ = exporter.from_notebook_node(notebook)
    # What is too wide scrolls, and must do so by keyboard too.
    body = body.replace('class="output_subarea', 'tabindex="0" class="output_subarea')
    return LINK.sub(r'href="\1.html\2', body)


class _MathRenderer(IPythonRenderer):
    """Write formulas as MathML, which browsers show by themselves."""

    def inline_math(self, body: str) -> str:
        return _formula(body)

    def block_math(self, body: str) -> str:
        formula = _formula(body, display="block")
        return f'<div class="formula" tabindex="0" role="group" aria-label="Formula">{formula}</div>'


def _formula(latex: str, display: str = "inline") -> str:
    def under(found: re.Match) -> str:
        return rf"\underset{{{found[2].strip('{}')}}}{{\text{{{found[1].replace(chr(92) + ',', ' ')}}}}}"

    return to_mathml(STARRED.sub(under, latex), display=display)


def _markdown(source: str) -> str:
    return MarkdownWithMath(renderer=_MathRenderer(escape=False)).render(source)


def _exporter() -> HTMLExporter:
    exporter = HTMLExporter(template_name="basic")
    exporter.register_filter("markdown2html", _markdown)
    return exporter


def _highlighting() -> str:
    """Return the colours of code, in light and in dark."""
    light, dark = (HtmlFormatter(style=style).get_style_defs(".highlight") for style in (CODE_LIGHT, CODE_DARK))
    return f"{light}\n@media screen and (prefers-color-scheme: dark) {{\n{dark}\n}}\n"
