"""Figures on a page: the saved SVG made fit to stand inside HTML, in light and in dark."""

import re
import xml.etree.ElementTree as ET
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from markupsafe import Markup

from ident_utils.errors import IdentError
from ident_utils.replay import read_replay
from ident_utils.results import REPLAY

SVG = "http://www.w3.org/2000/svg"
HREF = "{http://www.w3.org/1999/xlink}href"
ELEMENTS = {"svg", "g", "path", "defs", "clipPath", "pattern", "rect", "use", "text", "tspan", "image"}
GREY = re.compile(r"#([0-9a-f]{2})\1\1\b")
FONTS = re.compile(r"'DejaVu Sans'[^;\"]*sans-serif")
LONG_NUMBER = re.compile(r"(-?\d+\.\d\d)\d+")
DARK_INK, DARK_PAPER = 0xE8, 0x17  # what black and white become in the dark


@dataclass(frozen=True)
class Picture:
    """Hold a figure as an inline SVG, with the words that stand for it."""

    name: str
    svg: Markup
    alt: str
    greys: frozenset[str]  # two hexadecimal digits each


def read_picture(folder: Path, name: str) -> Picture | None:
    """Return a saved figure, or None where it was not drawn.

    Raises IdentError for a file that is no SVG.
    """
    path = folder / f"{name}.svg"
    if not path.is_file():
        return None
    try:
        root = ET.fromstring(path.read_bytes())
    except ET.ParseError as error:
        raise IdentError(f"{path} is no readable SVG ({error}); rerun its notebook") from error
    greys: set[str] = set()
    _clean(root, name, greys)
    for key in ("width", "height", "version"):
        root.attrib.pop(key, None)
    root.attrib |= {"class": "figure", "role": "img", "aria-labelledby": f"alt-{name}"}
    ET.register_namespace("", SVG)
    text = ET.tostring(root, encoding="unicode").replace(f' xmlns="{SVG}"', "", 1)
    return Picture(name, Markup(re.sub(r">\s+<", "><", text)), _alt(folder, name), frozenset(greys))


def _alt(folder: Path, name: str) -> str:
    """Return the alternative text that the figure was saved with."""
    file = folder / REPLAY / f"{name}.json.gz"
    if file.is_file():
        return read_replay(file.read_bytes())[1]
    return f"Figure {name}; its finding is written above it, its numbers are in {name}.csv."


def _clean(element: ET.Element, name: str, greys: set[str]) -> None:
    """Keep what a drawing needs, name it apart from other figures', and turn greys into variables."""
    for child in list(element):
        if child.tag not in {f"{{{SVG}}}{tag}" for tag in ELEMENTS}:
            element.remove(child)  # metadata, and a style sheet that would reach the whole page
        else:
            _clean(child, name, greys)
    is_text = element.tag in (f"{{{SVG}}}text", f"{{{SVG}}}tspan")
    attributes = {}
    for key, value in element.attrib.items():
        if key in (HREF, "href"):
            if value.startswith("#"):
                attributes["href"] = f"#{name}-{value[1:]}"
            elif value.startswith("data:image/png;base64,"):
                attributes["href"] = value.replace("\n", "")
        elif key == "id":
            attributes["id"] = f"{name}-{value}"
        elif key == "clip-path":
            attributes[key] = value.replace("url(#", f"url(#{name}-")
        elif key == "style":
            attributes[key] = _style(value.replace("url(#", f"url(#{name}-"), is_text, greys)
        elif key == "d":
            attributes[key] = LONG_NUMBER.sub(r"\1", value).replace("\n", "")
        elif not key.startswith("on"):
            attributes[key] = LONG_NUMBER.sub(r"\1", value)
    element.attrib.clear()
    element.attrib.update(attributes)


def _style(style: str, is_text: bool, greys: set[str]) -> str:
    style = FONTS.sub("var(--figure-font)", style)
    if is_text and "#ffffff" in style:  # white on a coloured field stays white
        return style
    greys.update(GREY.findall(style))
    return GREY.sub(r"var(--grey-\1)", style)


def grey_rules(pictures: Iterable[Picture]) -> str:
    """Return the style rules that give every grey of the pictures its shade, in light and in dark."""
    greys = sorted({grey for picture in pictures for grey in picture.greys} | {"00"})
    light = "".join(f"--grey-{grey}:#{grey * 3};" for grey in greys)
    dark = "".join(f"--grey-{grey}:#{_in_the_dark(int(grey, 16)) * 3};" for grey in greys)
    return f":root{{{light}}}\n@media screen and (prefers-color-scheme: dark){{:root{{{dark}}}}}\n"


def _in_the_dark(grey: int) -> str:
    return f"{round(DARK_INK - (DARK_INK - DARK_PAPER) * grey / 255):02x}"
