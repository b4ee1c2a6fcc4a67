"""The page of the explorer: its controls, and the work behind them in a thread that can be cancelled."""

import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from html import escape
from pathlib import Path

import ipywidgets as widgets
from plotly.callbacks import Points
from torch import Tensor

from ident_utils.attribution import Attribution
from ident_utils.errors import IdentError
from ident_utils.explore import study, tables
from ident_utils.explore.browser import Download, Watch
from ident_utils.explore.pictures import MAPS, Pictures
from ident_utils.fetch import model_catalogue
from ident_utils.models import Encoder, Text, load_encoder
from ident_utils.progress import Stage, listening

STYLE = Path(__file__).with_name("page.css")
MODEL = "minilm-l6"
EXAMPLE = (
    "The committee met on Monday to decide who would repair the old bridge, and by noon three firms had promised to "
    "do it for less than the town had saved.",
    "Nobody asked whether the bridge, which had stood empty for years, was still worth the money.",
)


class Cancelled(Exception):
    """Leave the work where it is; the page has asked for it."""


class Page:
    """Build the page; ``box`` is what is displayed."""

    def __init__(self) -> None:
        self._encoders: dict[str, Encoder] = {}
        self._work: threading.Thread | None = None
        self._cancelled = threading.Event()
        self._pictures, self._watch = Pictures(), Watch(2, self._begin)
        self._read: study.Read | None = None
        self._head: study.Head | None = None
        self._contributions: Attribution | None = None
        self._identified: dict[str, Tensor] | None = None
        self._filling = False  # of the lists, while nothing should answer to their changes
        self._make_controls()
        self.box = self._laid_out()
        self._connect()

    # What is on the page

    def _make_controls(self) -> None:
        wide, row = {"width": "auto"}, {"width": "auto", "max_width": "26rem"}
        self.first = widgets.Textarea(EXAMPLE[0], description="Text", rows=3, layout=wide)
        self.second = widgets.Textarea(EXAMPLE[1], description="Second text, if any", rows=2, layout=wide)
        self.model = widgets.Combobox(
            value=MODEL, options=list(model_catalogue()), ensure_option=False, description="Model", layout=row
        )
        self.truncate = widgets.Checkbox(description="Cut a text that is too long", indent=False, layout=row)
        self.go = widgets.Button(description="Look at it", button_style="primary")
        self.cancel = widgets.Button(description="Cancel", disabled=True)
        self.status, self.error = widgets.HTML(), widgets.HTML()
        self.layer, self.head, self.row, self.column, self.token = (
            widgets.Dropdown(description=name, options=[("–", 0)], layout=row)
            for name in ("Layer", "Head", "Attending token", "Attended token", "Hidden state of")
        )
        self.said = {name: widgets.HTML() for name in ("tokens", "head", "weight", "contribution", "identified")}
        self.files = [
            Download("Attention of this head (CSV)", "attention.csv", lambda: tables.head_csv(self._head)),
            Download("The same as a picture (SVG)", "attention.svg", lambda: tables.head_svg(self._head)),
            Download(
                "Contributions (CSV)", "contributions.csv", lambda: tables.contributions_csv(self._contributions)
            ),
            Download("All numbers (npz)", "explored.npz", self._everything),
        ]

    def _everything(self) -> bytes:
        return tables.everything_npz(self._read, self._head, self._contributions, self._identified)

    def _laid_out(self) -> widgets.VBox:
        said = self.said
        parts = [
            widgets.HTML(f"<style>{STYLE.read_text(encoding='utf-8')}</style>"),
            self.first,
            self.second,
            _side(self.model, self.truncate),
            _side(self.go, self.cancel),
            self.error,
            self.status,
            _title("Tokens", "What the model reads: words, and the pieces it takes them apart into."),
            said["tokens"],
            _title(
                "Attention",
                "A head's weights, what its output depends on (effective attention), and the part that cannot "
                "matter. Click a weight, or choose one by its tokens, to see how far it could move with the same "
                "output. A new text begins with the least certain one among the largest weights of its rows.",
            ),
            _side(self.layer, self.head, self.row, self.column),
            said["head"],
            said["weight"],
            self._pictures.attention,
            _title(
                "Contributions",
                "How much of a hidden state comes from each input token (Hidden Token Attribution), by layer.",
            ),
            _side(self.token),
            said["contribution"],
            self._pictures.contribution,
            _title(
                "Identity",
                "Which tokens would be found again from their hidden states, among those of this text: by the hidden "
                f"state itself (naive), and by a mapping fitted on {study.TEXTS} other texts (ridge).",
            ),
            said["identified"],
            _title("Download", "The numbers behind this page; the camera of a figure saves it as SVG."),
            _side(*self.files),
            self._watch,
        ]
        box = widgets.VBox(parts)
        box.add_class("ident-page")
        for text in (self.status, self.error):
            text.add_class("ident-live")
        return box

    def _connect(self) -> None:
        self.go.on_click(lambda _: self.start())
        self.cancel.on_click(lambda _: self.stop())
        for control, answer in (
            (self.layer, self._show_head),
            (self.head, self._show_head),
            (self.row, self._show_weight),
            (self.column, self._show_weight),
            (self.token, self._show_contributions),
        ):
            control.observe(self._answer(answer), "value")
        for trace in self._pictures.attention.data[: len(MAPS)]:
            trace.on_click(self._choose_weight)
        self._watch.observe(lambda _: self._suit(), ["dark", "width"])

    def _answer(self, show: Callable[[], None]) -> Callable[[object], None]:
        def answer(_: object) -> None:
            if not self._filling and self._read is not None:
                self._say_errors(show)

        return answer

    def _suit(self) -> None:
        self._pictures.show_on(dark=self._watch.dark, width=self._watch.width)

    # The work

    def _begin(self) -> None:
        """Look at the example, once a browser shows the page; another that comes later sees what is there."""
        self._suit()
        if self._work is None:
            self.start()

    def start(self) -> None:
        """Look at the text that stands on the page; what is still running is given up."""
        before = self._work
        self._cancelled.set()
        self._cancelled = threading.Event()
        second = self.second.value if self.second.value.strip() else None
        text = self.first.value if second is None else (self.first.value, second)
        wanted = text, self.model.value.strip(), self.truncate.value, self._cancelled
        self._work = threading.Thread(target=self._look, args=(before, *wanted), daemon=True)
        self._work.start()

    def stop(self) -> None:
        """Give up what is running; what is on the page stays."""
        self._cancelled.set()
        self._say("stopping …")

    def _look(
        self, before: threading.Thread | None, text: Text, model: str, truncate: bool, cancelled: threading.Event
    ) -> None:
        if before is not None:
            before.join()

        def check(stage: Stage | None = None) -> None:
            if cancelled.is_set():
                raise Cancelled
            if stage is not None:
                self._say(stage.what, stage.share)

        self.cancel.disabled, self.error.value = False, ""
        with listening(check):
            self._say_errors(lambda: self._measure(text, model, truncate, check), check)
        self.cancel.disabled = True

    def _measure(self, text: Text, model: str, truncate: bool, check: Callable[[], None]) -> None:
        self._say(f"loading {model}")
        if not model:
            raise IdentError("Choose a model: a name of the list, a folder, or a name on a hub.")
        if model not in self._encoders:
            self._encoders = {model: load_encoder(model)}  # one at a time: they are large
        check()
        self._say("reading the text")
        read = study.read_text(self._encoders[model], text, truncate=truncate)
        check()
        self._show_read(read)
        self._say("measuring contributions")
        self._contributions = study.contributions(read)
        self._show_contributions()
        self._say("fitting a mapping on other texts; the first time it takes a while")
        self._identified = study.identified(read)
        self.said["identified"].value = tables.identified_html(read, self._identified)
        self._say("")

    def _say_errors(self, work: Callable[[], None], check: Callable[[], None] | None = None) -> None:
        """Do the work; whatever goes wrong becomes a sentence on the page."""
        try:
            work()
        except Cancelled:
            self._say("cancelled")
        except (IdentError, ValueError) as error:
            self._fail(str(error))
        except MemoryError:
            self._fail("This does not fit into memory; take a shorter text or a smaller model.")
        except Exception as error:  # nobody sees this kernel's traceback
            self._fail(f"This failed and should not have: {type(error).__name__}: {error}")

    def _fail(self, sentence: str) -> None:
        self.error.value = f'<p class="ident-error" role="alert">{escape(sentence)}</p>'
        self._say("")

    def _say(self, what: str, share: float | None = None) -> None:
        known = f' value="{share:.3f}"' if share is not None else ""
        running = what not in ("", "cancelled")
        bar = f'<progress aria-label="progress"{known}></progress> ' if running else ""
        self.status.value = f'<p role="status">{bar}{escape(what)}</p>' if what else ""

    # What was found

    def _show_read(self, read: study.Read) -> None:
        again = self._read is not None
        same_text = again and self._read.tokens == read.tokens
        self._read, self._contributions, self._identified = read, None, None
        self._hold(self.layer, range(1, read.encoder.n_layers + 1), read.encoder.n_layers, keep=again)
        self._hold(self.head, range(1, read.encoder.n_heads + 1), 1, keep=again)
        begin = read.head(self.layer.value, self.head.value).least_certain()
        names = [f"{i} {token}" for i, token in enumerate(read.tokens, start=1)]
        for control, token in ((self.row, begin.row), (self.column, begin.column), (self.token, begin.row)):
            self._hold(control, zip(names, range(read.n), strict=True), token, keep=same_text)
        self.said["tokens"].value = tables.length_html(read) + tables.tokens_html(read)
        self.said["contribution"].value = self.said["identified"].value = "<p>…</p>"
        self._show_head()

    def _hold(self, control: widgets.Dropdown, options: Iterable, value: int, *, keep: bool) -> None:
        """Fill a list and choose ``value``, or what was chosen before if that is to be kept and the list has it."""
        options = [each if isinstance(each, tuple) else (str(each), each) for each in options]
        self._filling = True
        chosen = control.value if keep and control.value in {number for _, number in options} else value
        control.options = options
        control.value = chosen
        self._filling = False

    def _show_head(self) -> None:
        self._head = self._read.head(self.layer.value, self.head.value)
        self._pictures.draw_head(self._head)
        self.said["head"].value = tables.head_html(self._head)
        self._show_weight()
        for file in self.files:
            file.ready = self._contributions is not None or "ontributions" not in file.label

    def _show_weight(self) -> None:
        found = self._head.freedom(self.row.value, self.column.value)
        self._pictures.draw_row(found)
        self.said["weight"].value = tables.freedom_html(found)

    def _choose_weight(self, trace: object, points: Points, state: object) -> None:
        if self._read is None or not points.xs:
            return
        self._filling = True
        with suppress(Exception):  # a click on a picture of the text before
            self.row.value, self.column.value = int(points.ys[0]), int(points.xs[0])
        self._filling = False
        self._say_errors(self._show_weight)

    def _show_contributions(self) -> None:
        if self._contributions is None:
            return
        self._pictures.draw_contributions(self._contributions, self.token.value)
        self.said["contribution"].value = tables.contribution_html(self._contributions, self.token.value)
        for file in self.files:
            file.ready = True


def _side(*parts: widgets.Widget) -> widgets.HBox:
    box = widgets.HBox(parts)
    box.add_class("ident-side")
    return box


def _title(title: str, about: str) -> widgets.HTML:
    return widgets.HTML(f"<h2>{title}</h2><p>{about}</p>")


def show_page() -> widgets.VBox:
    """Return the page, which begins with an example."""
    return Page().box
