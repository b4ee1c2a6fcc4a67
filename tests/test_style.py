"""Every figure can be read: at the width of a column, in grey, without green receptors, on a dark page."""

import re
from itertools import combinations, pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ident_utils.paths import ROOT
from ident_utils.plots.canvas import COLOURS, COLUMN, PAGE, break_lines
from ident_utils.shades import PAPER, dark_svg, in_the_dark

FIGURES = sorted((ROOT / "figures" / "base").glob("*.svg"))
SHOWN = {COLUMN: 3.3, PAGE: 7.0}  # inches in print
# Machado, Oliveira & Fernandes 2009: deuteranopia, severity 1, in linear RGB.
DEUTERANOPIA = [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.01182, 0.042940, 0.968881]]
TO_XYZ = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])


def linear(colour: str) -> np.ndarray:
    parts = np.array([int(colour[i : i + 2], 16) for i in (1, 3, 5)]) / 255
    return np.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4)


def lab(rgb: np.ndarray) -> np.ndarray:
    x, y, z = np.cbrt(TO_XYZ @ np.clip(rgb, 0, 1) / [0.9505, 1, 1.089])
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


def contrast(one: str, other: str) -> float:
    dark, light = sorted(linear(colour) @ TO_XYZ[1] for colour in (one, other))
    return (light + 0.05) / (dark + 0.05)


def test_colours_stand_out_on_white_and_on_dark_pages():
    paper = "#" + f"{PAPER:02x}" * 3
    assert min(contrast(colour, "#ffffff") for colour in COLOURS) > 3
    assert min(contrast(in_the_dark(colour), paper) for colour in COLOURS) > 3


def test_the_first_four_colours_differ_in_grey_print():
    lightness = [lab(linear(colour))[0] for colour in COLOURS[:4]]
    assert min(abs(a - b) for a, b in combinations(lightness, 2)) > 9


@pytest.mark.parametrize("eyes", [np.eye(3), np.array(DEUTERANOPIA)], ids=["usual", "deuteranopia"])
def test_colours_differ_for_all_eyes(eyes):
    seen = [lab(eyes @ linear(colour)) for colour in COLOURS]
    assert min(np.linalg.norm(a - b) for a, b in combinations(seen, 2)) > 12


@pytest.mark.parametrize("path", FIGURES, ids=lambda path: path.stem)
def test_a_figure_is_small_and_its_text_is_text_that_can_be_read(path):
    assert max(path.stat().st_size, path.with_suffix(".png").stat().st_size) < 300_000
    svg = path.read_text(encoding="utf-8")
    width = float(re.search(r'viewBox="0 0 ([\d.]+)', svg)[1]) / 72
    sizes = [float(size) for size in re.findall(r'<text style="[^"]*?font-size: ([\d.]+)px', svg)]
    assert len(sizes) > 5 and 'xlink:href="#DejaVu' not in svg
    assert min(sizes) * SHOWN[round(width, 2)] / width >= 6


def test_a_dark_figure_keeps_its_words_and_turns_its_colours():
    svg = (
        b'<svg xmlns="http://www.w3.org/2000/svg"><path style="fill: #ffffff"/><path style="stroke: #0b6fb0"/>'
        b'<text style="font: 9px x">#decade</text><g id="on-colour-1"><text style="fill: #ffffff">1</text></g></svg>'
    )
    dark = dark_svg(svg).decode()
    assert "fill: #171717" in dark and "fill: #e8e8e8" in dark and ">#decade<" in dark
    assert f"stroke: {in_the_dark('#0b6fb0')}" in dark and "#0b6fb0" not in dark
    assert '<text style="fill: #ffffff">1' in dark, "words on a coloured field keep their ink"


@given(st.lists(st.text("abcdefgh", min_size=1, max_size=12), min_size=1, max_size=20), st.integers(20, 300))
def test_lines_are_as_wide_as_they_may_be(words, points):
    lines = break_lines(" ".join(words), points, 9)
    assert " ".join(lines).split() == words
    wide = [line for line in lines if len(break_lines(line, points, 9)) > 1]
    assert not wide
    for line, after in pairwise(lines):
        assert len(break_lines(f"{line} {after.split()[0]}", points, 9)) == 2
