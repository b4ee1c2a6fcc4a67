"""Kernels for headless runs: this interpreter, a chosen environment, and an eye on the process."""

import os
import signal
import subprocess
import threading
from collections.abc import Callable, Mapping
from pathlib import Path

import psutil
from ipykernel.kernelspec import RESOURCES, get_kernel_dict
from jupyter_client.kernelspec import KernelSpec, KernelSpecManager
from jupyter_client.manager import AsyncKernelManager
from traitlets import default

from ident_utils import paths
from ident_utils.progress import PROGRESS, Stage, StageReader

KERNEL_NAME = "python3"
SAMPLING_SECONDS = 0.1


def kernel_environment(profile: str, threads: int) -> dict[str, str]:
    """Return the environment of a kernel that runs a notebook at a profile and computes with some threads.

    The folders are passed on as absolute paths: a relative ``IDENT_FIGURES`` would otherwise mean one place
    to the caller and another to the kernel, whose working directory is the folder of the notebooks.
    """
    environment = dict(os.environ)
    for name, folder in (
        ("IDENT_FIGURES", paths.figures_root()),
        ("IDENT_RUNS", paths.runs_root()),
        ("IDENT_CACHE", paths.cache_root()),
    ):
        environment[name] = str(folder)
    if environment.get("IDENT_MRPC"):
        environment["IDENT_MRPC"] = str(Path(environment["IDENT_MRPC"]).expanduser().resolve())
    # The notebooks must import the very package that runs them, installed or not.
    search_path = [str(paths.ROOT), *filter(None, environment.get("PYTHONPATH", "").split(os.pathsep))]
    environment["PYTHONPATH"] = os.pathsep.join(search_path)
    environment["IDENT_PROFILE"] = profile
    environment.setdefault("OMP_NUM_THREADS", str(threads))
    # Threads that wait by spinning bring a busy machine to a crawl: many small decompositions took ten times as long.
    environment.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    environment["TOKENIZERS_PARALLELISM"] = "false"
    environment["PYDEVD_DISABLE_FILE_VALIDATION"] = "1"
    return environment


class KernelWatch:
    """Follow one kernel process: its peak memory and its loops while it lives, its exit code and last words after.

    It is killed when ``interrupted`` is set. ``on_stage`` is called, in whatever thread reads it first, with what a
    loop in the kernel reports.
    """

    def __init__(self, folder: Path, interrupted: threading.Event, on_stage: Callable[[Stage], None]) -> None:
        self.log = folder / "kernel.log"
        self.reports = folder / "progress.jsonl"
        self.connection = folder / "kernel.json"
        self._reader, self._reading = StageReader(self.reports), threading.Lock()
        self.interrupted = interrupted
        self.on_stage = on_stage
        self.peak_bytes = 0
        self._process: subprocess.Popen | None = None
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    @property
    def peak_memory_mb(self) -> float | None:
        """Return the peak resident memory of kernel and children in 10^6 bytes, None without a sample."""
        return self.peak_bytes / 1e6 if self.peak_bytes else None

    def started(self, process: subprocess.Popen) -> None:
        """Begin to sample the memory of a process that was just started."""
        self._process = process
        self._thread = threading.Thread(target=self._sample, args=(process.pid,), daemon=True)
        self._thread.start()

    def _sample(self, pid: int) -> None:
        try:
            kernel = psutil.Process(pid)
            while True:
                self.read_reports()
                self.peak_bytes = max(self.peak_bytes, _resident_bytes(kernel))
                if self.interrupted.is_set():
                    kernel.kill()
                    return
                if self._stop.wait(SAMPLING_SECONDS):
                    return
        except psutil.Error:
            return

    def read_reports(self) -> None:
        """Pass on what a loop has reported since the last time."""
        with self._reading:
            if (stage := self._reader.latest()) is not None:
                self.on_stage(stage)

    def finish(self) -> None:
        """Stop sampling and end the process if an interrupted start left it running."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
        self.read_reports()
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
            self._process.wait()

    def how_it_ended(self) -> str:
        """Describe the end of the kernel: its signal or exit code, and the last line it wrote to stderr."""
        code = self._process.poll() if self._process is not None else None
        if code is None:
            ending = "no exit code is known"
        elif code == -signal.SIGKILL:
            ending = "killed by the system, which often means that memory ran out"
        elif code < 0:
            ending = f"ended by {signal.Signals(-code).name}"
        else:
            ending = f"exit code {code}"
        lines = self.log.read_text(errors="replace").splitlines() if self.log.exists() else []
        # What ipykernel logs about itself is no news about the end.
        own = [line.strip() for line in lines if line.strip() and not line.startswith("[IPKernelApp]")]
        return f"{ending}; its last words: {own[-1]}" if own else ending


def _resident_bytes(kernel: psutil.Process) -> int:
    total = kernel.memory_info().rss
    for child in kernel.children(recursive=True):
        try:
            total += child.memory_info().rss
        except psutil.Error:  # a child may end between listing and reading
            continue
    return total


class _OwnSpec(KernelSpecManager):
    def get_kernel_spec(self, kernel_name: str) -> KernelSpec:
        return KernelSpec(resource_dir=RESOURCES, **get_kernel_dict())


def kernel_manager_class(environment: Mapping[str, str], watch: KernelWatch) -> type[AsyncKernelManager]:
    """Make a kernel manager whose kernels run on ``sys.executable``, whatever ``python3`` is registered as.

    On many machines a kernel spec ``python3`` in the user's folder points to another interpreter, which has
    other packages or none of ours. What the kernel process itself writes to stderr goes to ``watch.log``, what
    its loops report to ``watch.reports``; the keys to it lie beside them, so that nothing is left elsewhere when all
    is killed.
    """
    environment = {**environment, PROGRESS: str(watch.reports)}

    class OwnInterpreter(AsyncKernelManager):
        shutdown_wait_time = 2.0  # seconds that a busy kernel gets to leave by itself

        @default("kernel_spec_manager")
        def _own_spec(self) -> KernelSpecManager:
            return _OwnSpec(parent=self)

        @default("connection_file")
        def _own_connection(self) -> str:
            return str(watch.connection)

        async def start_kernel(self, **options) -> None:
            with open(watch.log, "wb") as log:
                await super().start_kernel(env=environment, stderr=log, **options)
            watch.started(self.provisioner.process)

    return OwnInterpreter
