"""Figures on dark pages: what becomes of their colours, and the README's figures once more in those."""

import colorsys
import re
import xml.etree.ElementTree as ET
from collections.abc import Callable, Iterator
from pathlib import Path

from ident_utils.errors import IdentError

SVG = "http://www.w3.org/2000/svg"
XLINK = "http://www.w3.org/1999/xlink"
COLOUR = re.compile(r"#[0-9a-f]{6}\b")
INK, PAPER = 0xE8, 0x17  # what black and white become
ON_COLOUR = "on-colour"  # begins the id of words that stand on a coloured field and keep their ink
DARK = "dark"  # folder of the dark variants, beside the figures
README_FIGURES = ("08_replacement", "03_controls", "05_own_contribution")


def in_the_dark(colour: str) -> str:
    """Return what a colour, as #rrggbb, becomes on a dark page.

    Greys change places, from ink to paper; other colours keep their hue and become light enough to be seen.
    """
    red, green, blue = (int(colour[i : i + 2], 16) for i in (1, 3, 5))
    if red == green == blue:
        return "#" + f"{round(INK - (INK - PAPER) * red / 255):02x}" * 3
    hue, lightness, saturation = colorsys.rgb_to_hls(red / 255, green / 255, blue / 255)
    turned = colorsys.hls_to_rgb(hue, 0.85 - lightness / 2, saturation)
    return "#" + "".join(f"{round(255 * part):02x}" for part in turned)


def recolour(style: str, turn: Callable[[str], str]) -> str:
    """Return a style with every colour in it turned."""
    return COLOUR.sub(lambda found: turn(found[0]), style)


def dark_svg(svg: bytes) -> bytes:
    """Return a figure as matplotlib has drawn it, in the colours of a dark page; its text stays text.

    Raises xml.etree.ElementTree.ParseError for what is no SVG.
    """
    root = ET.fromstring(svg)
    _turn(root)
    ET.register_namespace("", SVG)
    ET.register_namespace("xlink", XLINK)
    return ET.tostring(root, encoding="utf-8", xml_declaration=True) + b"\n"


def _turn(element: ET.Element) -> None:
    for child in element:
        if not child.get("id", "").startswith(ON_COLOUR):
            _turn(child)
    style = element.get("style", "")
    if element.tag == f"{{{SVG}}}text" and "fill:" not in style:
        style = f"{style}; fill: #000000"  # what a text without a colour has
    if style:
        element.set("style", recolour(style, in_the_dark))


def draw_dark(folder: Path, names: tuple[str, ...] = README_FIGURES) -> Iterator[tuple[str, bool]]:
    """Write the dark variants of some figures of a folder of results; yield each one's name and whether it changed.

    A figure that the folder lacks is passed over. Raises IdentError for a file that is no SVG.
    """
    from ident_utils.results import write_atomically  # here: reading colours needs none of its imports

    for name in names:
        source, target = folder / f"{name}.svg", folder / DARK / f"{name}.svg"
        if not source.is_file():
            continue
        try:
            picture = dark_svg(source.read_bytes())
        except ET.ParseError as error:
            raise IdentError(f"{source} is no readable SVG ({error}); rerun its notebook") from error
        changed = not target.is_file() or target.read_bytes() != picture
        if changed:
            write_atomically(target, picture)
        yield f"{DARK}/{name}", changed
