"""Notebooks that tests write and read."""

from pathlib import Path

import nbformat

PARAMETERS = "profile = None\nmodel = None\ncorpus = None\nseed = 0"


def printed(path: Path) -> list[str]:
    """Return what the code cells of an executed notebook printed, line by line."""
    cells = nbformat.read(path, as_version=4).cells
    outputs = [output for cell in cells for output in cell.get("outputs", [])]
    return "".join(o.text for o in outputs if o.output_type == "stream").splitlines()
