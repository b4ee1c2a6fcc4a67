"""The two small widgets of the page that have a part in the browser: browser.js."""

from collections.abc import Callable
from pathlib import Path

import anywidget
import traitlets

SCRIPT = Path(__file__).with_name("browser.js")
TYPES = {".csv": "text/csv", ".npz": "application/octet-stream", ".svg": "image/svg+xml"}


class Watch(anywidget.AnyWidget):
    """Know how wide and how dark the screen is, and let the page notice when this kernel no longer answers.

    ``on_ready`` is called when a browser has drawn so many ``figures``.
    """

    _esm = SCRIPT
    kind = traitlets.Unicode("watch").tag(sync=True)
    dark = traitlets.Bool(False).tag(sync=True)
    width = traitlets.Int(1200).tag(sync=True)

    figures = traitlets.Int().tag(sync=True)

    def __init__(self, figures: int, on_ready: Callable[[], None]) -> None:
        super().__init__(figures=figures)
        self._on_ready = on_ready
        self.on_msg(self._hear)

    def _hear(self, widget: object, content: object, buffers: object) -> None:
        self.send("here")
        if content == "ready":
            self._on_ready()


class Download(anywidget.AnyWidget):
    """Offer a file that is made when it is asked for: ``make`` returns its bytes."""

    _esm = SCRIPT
    kind = traitlets.Unicode("download").tag(sync=True)
    label = traitlets.Unicode().tag(sync=True)
    ready = traitlets.Bool(False).tag(sync=True)

    def __init__(self, label: str, name: str, make: Callable[[], bytes]) -> None:
        super().__init__(label=label)
        self._name, self._make = name, make
        self.on_msg(self._hand_out)

    def _hand_out(self, widget: object, content: object, buffers: object) -> None:
        if content == "wanted" and self.ready:
            self.send({"name": self._name, "type": TYPES[Path(self._name).suffix]}, [self._make()])
