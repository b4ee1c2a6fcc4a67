"""Serve the page with Voilà: every visitor gets a kernel of their own."""

import os
import socket
import sys
from pathlib import Path
from typing import NoReturn

from ident_utils.errors import IdentError
from ident_utils.notebooks import EXPLORER, notebook_folder

SHARE = Path(__file__).with_name("share")
UNNEEDED = ["@jupyter-notebook/lab-extension", "@voila-dashboards/jupyterlab-preview"]  # JupyterLab's, and noisy
IDLE = 1800  # seconds after which a kernel that nobody is connected to is ended


def serve_page(port: int = 8866, *, browser: bool = True) -> NoReturn:
    """Become Voilà, which serves the page on this machine until it is interrupted.

    Raises IdentError where the notebook is missing or the port is taken.
    """
    notebook = notebook_folder() / f"{EXPLORER}.ipynb"
    if not notebook.is_file():
        raise IdentError(f"there is no {notebook.name} in {notebook.parent}; restore the file")
    _check_free(port)
    path = os.pathsep.join(filter(None, (str(SHARE), os.environ.get("JUPYTER_PATH"))))
    options = [
        "--template=ident",
        "--Voila.ip=127.0.0.1",
        f"--port={port}",
        "--VoilaConfiguration.show_tracebacks=False",
        f"--VoilaConfiguration.extension_denylist={UNNEEDED}",
        "--MappingKernelManager.cull_interval=60",
        f"--MappingKernelManager.cull_idle_timeout={IDLE}",
        *([] if browser else ["--no-browser"]),
    ]
    print(f"the explorer: http://127.0.0.1:{port} (Ctrl-C ends it)", flush=True)
    command = [sys.executable, "-m", "voila", str(notebook), *options]
    os.execve(sys.executable, command, os.environ | {"JUPYTER_PATH": path})  # signals reach it, and nothing is left


def _check_free(port: int) -> None:
    with socket.socket() as trial:
        trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            trial.bind(("127.0.0.1", port))
        except (OSError, OverflowError) as error:
            raise IdentError(f"port {port} cannot be used here; choose another with --port") from error
