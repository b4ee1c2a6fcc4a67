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
from ident_utils.shades import COLOUR, ON_COLOUR, SVG, XLINK, in_the_dark, recolour

HREF = f"{{{XLINK}}}href"
ELEMENTS = {"svg", "g", "path", "defs", "clipPath", "pattern", "rect", "use", "text", "tspan", "image"}
FONTS = re.compile(r"'DejaVu Sans'[^;\"]*sans-serif")
LONG_NUMBER = re.compile(r"(-?\d+\.\d\d)\d+")


@dataclass(frozen=True)
class Picture:
    """Hold a figure as an inline SVG, with the words that stand for it."""

    name: str
    svg: Markup
    alt: str
    colours: frozenset[str]  # as #rrggbb


def read_picture(folder: Path, name: str) -> Picture | None:
    """Return a saved figure, or None where it was not drawn.

    Raises IdentError for a file that is no SVG.
    """
    path = folder / f"{name}.svg"
    if not path.is_file():
        return None
    try:
        root = ET.fromstring(path.read_bytes())
        width = float(root.get("viewBox", "0 0 504 360").split()[2])
    except (ET.ParseError, ValueError, IndexError) as error:
        raise IdentError(f"{path} is no readable SVG ({error}); rerun its notebook") from error
    colours: set[str] = set()
    _clean(root, name, colours)
    for key in ("width", "height", "version"):
        root.attrib.pop(key, None)
    shown = {"class": "figure", "role": "img", "aria-labelledby": f"alt-{name}", "style": f"--width:{width:.0f}"}
    root.attrib |= shown
    ET.register_namespace("", SVG)
    text = ET.tostring(root, encoding="unicode").replace(f' xmlns="{SVG}"', "", 1)
    return Picture(name, Markup(re.sub(r">\s+<", "><", text)), _alt(folder, name), frozenset(colours))


def _alt(folder: Path, name: str) -> str:
    """Return the alternative text that the figure was saved with."""
    file = folder / REPLAY / f"{name}.json.gz"
    if file.is_file():
        return read_replay(file.read_bytes())[1]
    return f"Figure {name}; its finding is written above it, its numbers are in {name}.csv."


def _clean(element: ET.Element, name: str, colours: set[str], keep: bool = False) -> None:
    """Keep what a drawing needs, name it apart from other figures', and turn colours into variables, unless told."""
    keep = keep or element.get("id", "").startswith(ON_COLOUR)
    for child in list(element):
        if child.tag not in {f"{{{SVG}}}{tag}" for tag in ELEMENTS}:
            element.remove(child)  # metadata, and a style sheet that would reach the whole page
        else:
            _clean(child, name, colours, keep)
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
            attributes[key] = _style(value.replace("url(#", f"url(#{name}-"), keep, colours)
        elif key == "d":
            attributes[key] = LONG_NUMBER.sub(r"\1", value).replace("\n", "")
        elif not key.startswith("on"):
            attributes[key] = LONG_NUMBER.sub(r"\1", value)
    element.attrib.clear()
    element.attrib.update(attributes)


def _style(style: str, keep: bool, colours: set[str]) -> str:
    style = FONTS.sub("var(--figure-font)", style)
    if keep:
        return style
    colours.update(COLOUR.findall(style))
    return recolour(style, lambda colour: f"var({_name(colour)})")


def _name(colour: str) -> str:
    """Name the variable that holds a colour: two digits say all about a grey."""
    return f"--grey-{colour[1:3]}" if colour[1:] == 3 * colour[1:3] else f"--colour-{colour[1:]}"


def colour_rules(pictures: Iterable[Picture]) -> str:
    """Return the style rules that give every colour of the pictures its shade, in light and in dark."""
    colours = sorted({colour for picture in pictures for colour in picture.colours} | {"#000000"})
    light = "".join(f"{_name(colour)}:{colour};" for colour in colours)
    dark = "".join(f"{_name(colour)}:{in_the_dark(colour)};" for colour in colours)
    return f":root{{{light}}}\n@media screen and (prefers-color-scheme: dark){{:root{{{dark}}}}}\n"
