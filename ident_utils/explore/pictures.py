"""The figures of the page: interactive, offline, on light and dark paper, in one column on a narrow screen."""

from collections.abc import Sequence
from html import escape

import numpy as np
import plotly.graph_objects as go
from matplotlib.colors import to_hex

from ident_utils.attribution import Attribution
from ident_utils.explore.study import Freedom, Head
from ident_utils.plots.attention import CUT
from ident_utils.plots.canvas import COLOURS, SIGNED

NARROW = 700  # pixels of a screen below which maps stand under one another
LABELS = {False: 30, True: 20}  # labels of tokens that an axis has room for, on a wide and a narrow screen
INK = {False: "#1b1f24", True: "#e6e8ea"}
LINE = {False: "#d8dbdf", True: "#343a41"}
SCALE = [[i / 16, to_hex(SIGNED(i / 16))] for i in range(17)]
MAPS = ("raw", "effective", "raw − effective: cannot matter")
MARK = "#8a8f96"  # a grey that is seen on the light ground of the maps in either scheme
GAP = 0.04
HOVER = "%{customdata[0]} → %{customdata[1]}: %{z:.3f}<extra></extra>"
NAMED = 150  # tokens up to which every weight of a map knows their names, for what is shown under the pointer


class Pictures:
    """Hold the two figures of the page, each drawn once and then only given new numbers."""

    def __init__(self) -> None:
        self.attention, self.contribution = _attention_figure(), _contribution_figure()
        self._narrow, self._tokens = False, ()
        self.show_on(dark=False, width=1200)  # before they are widgets, which tell a browser only what changes later
        self.attention, self.contribution = _widget(self.attention, "attention"), _widget(self.contribution, "share")

    def show_on(self, *, dark: bool, width: int) -> None:
        """Suit the figures to the screen that they are seen on."""
        self._narrow = width < NARROW
        for figure in (self.attention, self.contribution):
            look = {"font_color": INK[dark], "colorway": COLOURS}
            with figure.batch_update():
                figure.update_layout(**look)
                figure.update_xaxes(gridcolor=LINE[dark], linecolor=LINE[dark], zerolinecolor=LINE[dark])
                figure.update_yaxes(gridcolor=LINE[dark], linecolor=LINE[dark], zerolinecolor=LINE[dark])
                if figure is self.attention:
                    figure.data[3].marker.color = "#7db9ff" if dark else COLOURS[0]
                    figure.data[4].marker.color = "#f3a63b" if dark else COLOURS[1]
                    figure.data[4].error_y.color = figure.data[4].marker.color
                    self._arrange()
        self._label(self._tokens)

    def _arrange(self) -> None:
        """Lay three maps and a row of weights out: side by side, or one under another."""
        figure = self.attention
        if self._narrow:
            down = [(0.80, 1.0), (0.54, 0.74), (0.28, 0.48), (0.06, 0.17)]
            places = [((0.0, 1.0), extent) for extent in down]
        else:
            wide = (1 - 2 * GAP) / 3
            places = [((i * (wide + GAP), min(1.0, i * (wide + GAP) + wide)), (0.46, 1.0)) for i in range(3)]
            places.append(((0.0, 1.0), (0.1, 0.27)))
        for number, (across, up) in enumerate(places, start=1):
            figure.layout[f"xaxis{number}"].domain, figure.layout[f"yaxis{number}"].domain = across, up
            if number <= len(MAPS):
                figure.layout.annotations[number - 1].update(x=across[0], y=up[1])
        figure.update_layout(height=1900 if self._narrow else 820)
        figure.layout.coloraxis.colorbar.y, figure.layout.legend.y = (1.02, -0.03) if self._narrow else (1.06, -0.1)

    def _label(self, tokens: Sequence[str]) -> None:
        """Write as many tokens on the axes as can be read."""
        self._tokens = tuple(tokens)
        every = -(-len(tokens) // LABELS[self._narrow]) if tokens else 1
        one_row = -(-len(tokens) // (LABELS[True] if self._narrow else 3 * LABELS[False])) if tokens else 1
        for step, figure, axes in (
            (every, self.attention, ("xaxis1", "xaxis2", "xaxis3", "yaxis1")),
            (one_row, self.attention, ("xaxis4",)),
            (one_row, self.contribution, ("xaxis1",)),
        ):
            at = list(range(0, len(tokens), step))
            across = {"tickvals": at, "ticktext": [label(tokens[i]) for i in at]}
            with figure.batch_update():
                for axis in axes:
                    figure.layout[axis].update(across)

    def draw_head(self, head: Head) -> None:
        """Show the three maps of a head, on one scale; without an effective attention only the first."""
        maps = [head.raw, head.effective, head.removed]
        top = float(np.quantile(head.raw.abs().numpy(), CUT)) or 1.0
        names = [label(token) for token in head.tokens]
        with self.attention.batch_update():
            self.attention.layout.coloraxis.update(cmin=-top, cmax=top)
            for trace, values in zip(self.attention.data[: len(MAPS)], maps, strict=True):
                trace.z = None if values is None else values.float().numpy()
                named = values is not None and len(names) <= NAMED
                trace.customdata = _named(names) if named else None
                trace.hovertemplate = HOVER if named else "%{z:.3f}<extra></extra>"
            for number in range(1, 4):
                limits = {"range": [-0.5, len(names) - 0.5]}
                self.attention.layout[f"xaxis{number}"].update(limits)
                self.attention.layout[f"yaxis{number}"].update(range=limits["range"][::-1])
        if tuple(head.tokens) != self._tokens:
            self._label(head.tokens)

    def draw_row(self, found: Freedom) -> None:
        """Show a row of weights, another with the same output, and how far the chosen weight can go."""
        own, other = found.own.numpy(), found.other.numpy()
        names = [label(token) for token in found.head.tokens]
        up, down = np.full(len(own), np.nan), np.full(len(own), np.nan)
        up[found.column] = found.high - other[found.column]
        down[found.column] = other[found.column] - found.low
        with self.attention.batch_update():
            for trace, values in zip(self.attention.data[len(MAPS) :], (own, other), strict=True):
                trace.x, trace.y, trace.customdata = np.arange(len(own)), values, names
            self.attention.data[-1].error_y.update(array=np.maximum(up, 0), arrayminus=np.maximum(down, 0))
            self.attention.layout.xaxis4.range = [-0.6, len(own) - 0.4]
            self.attention.layout.xaxis4.title.text = (
                f"weights of ‘{names[found.row]}’ ({found.row + 1});<br>"
                f"the line is the interval of ‘{names[found.column]}’ ({found.column + 1})"
            )
            self.attention.layout.shapes = self._marks(found)

    @staticmethod
    def _marks(found: Freedom) -> list[dict]:
        """Frame the chosen row and weight in the maps that are drawn."""
        maps = range(1, 2 if found.head.effective is None else 4)
        row = {"x0": -0.5, "x1": len(found.own) - 0.5, "line_width": 1}
        weight = {"x0": found.column - 0.7, "x1": found.column + 0.7, "line_width": 2}
        frame = {"type": "rect", "y0": found.row - 0.7, "y1": found.row + 0.7, "line_color": MARK}
        return [frame | each | {"xref": f"x{i}", "yref": f"y{i}"} for i in maps for each in (row, weight)]

    def draw_contributions(self, found: Attribution, token: int) -> None:
        """Show by layer what every input token contributes to the hidden state of one."""
        shares = 100 * found.contributions[:, token].float().numpy()
        names = [label(piece) for piece in found.tokens]
        with self.contribution.batch_update():
            self.contribution.data[0].update(z=shares, y=list(found.layers), x=np.arange(len(names)))
            self.contribution.data[0].customdata = np.tile(np.array(names, dtype=object), (len(shares), 1))
            self.contribution.layout.coloraxis.update(cmin=0, cmax=float(np.quantile(shares, CUT)))
            self.contribution.layout.xaxis.title.text = f"input token; hidden state of ‘{names[token]}’ ({token + 1})"
            self.contribution.layout.yaxis.tickvals = list(found.layers)


def label(token: str) -> str:
    """Return a token as the figures must be given it: < and $ have meanings."""
    return escape(token, quote=False).replace("$", "＄")


def _named(names: Sequence[str]) -> np.ndarray:
    """Return [n, n, 2] names of rows and columns, for what is shown under the pointer."""
    rows = np.repeat(np.array(names, dtype=object)[:, None], len(names), axis=1)
    return np.stack([rows, rows.T], axis=-1)


def _widget(figure: go.Figure, file: str) -> go.FigureWidget:
    widget = go.FigureWidget(figure)
    widget._config = {
        "displaylogo": False,
        "responsive": True,
        "modeBarButtonsToRemove": ["select2d", "lasso2d", "autoScale2d"],
        "toImageButtonOptions": {"format": "svg", "filename": file},
    }
    return widget


def _base(**layout: object) -> go.Figure:
    figure = go.Figure(layout=layout)
    clear = "rgba(0,0,0,0)"
    figure.update_layout(template="none", paper_bgcolor=clear, plot_bgcolor=clear, font_size=12, dragmode=False)
    return figure


def _attention_figure() -> go.Figure:
    figure = _base(margin={"l": 80, "r": 10, "t": 30, "b": 90}, showlegend=True, autosize=True)
    for number, name in enumerate(MAPS, start=1):
        figure.add_heatmap(
            coloraxis="coloraxis", xaxis=f"x{number}", yaxis=f"y{number}", hovertemplate=HOVER, name=name
        )
        figure.add_annotation(
            text=f"<b>{name}</b>", showarrow=False, xref="paper", yref="paper", xanchor="left", yanchor="bottom"
        )
    row = {"xaxis": "x4", "yaxis": "y4", "hovertemplate": "%{customdata}: %{y:.3f}<extra></extra>"}
    figure.add_bar(name="the model's weights", **row)
    figure.add_scatter(
        name="others with the same output",
        mode="markers",
        marker={"symbol": "diamond", "size": 8},
        error_y={"type": "data", "symmetric": False, "thickness": 3, "width": 6},
        **row,
    )
    for number in (1, 2, 3):
        figure.update_layout({f"xaxis{number}": {"anchor": f"y{number}", "tickangle": -90, "showgrid": False}})
        figure.update_layout({f"yaxis{number}": {"anchor": f"x{number}", "showgrid": False}})
        if number > 1:
            figure.layout[f"yaxis{number}"].showticklabels = False
    figure.update_layout(
        xaxis4={"anchor": "y4", "tickangle": -90, "title": {"text": ""}},
        yaxis4={"anchor": "x4", "title": {"text": "weight"}, "rangemode": "tozero"},
        coloraxis={"colorscale": SCALE, "colorbar": _bar("weight")},
        legend={"orientation": "h", "x": 0, "y": -0.12, "yanchor": "top"},
    )
    return figure


def _contribution_figure() -> go.Figure:
    figure = _base(margin={"l": 60, "r": 10, "t": 20, "b": 110}, autosize=True, height=420)
    figure.add_heatmap(coloraxis="coloraxis", hovertemplate="%{customdata}, layer %{y}: %{z:.1f}%<extra></extra>")
    figure.update_layout(
        xaxis={"tickangle": -90, "showgrid": False, "title": {"text": ""}},
        yaxis={"title": {"text": "layer"}, "showgrid": False},
        coloraxis={"colorscale": "Viridis", "colorbar": _bar("contribution (%)")},
    )
    return figure


def _bar(title: str) -> dict:
    return {"orientation": "h", "thickness": 10, "y": 1.08, "len": 0.35, "x": 1, "xanchor": "right"} | {
        "title": {"text": title, "side": "top"}
    }
