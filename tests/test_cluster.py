"""Work on many texts on a real Dask scheduler with worker processes, all on loopback."""

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from encoders import make_texts, saved_encoder

from ident_utils import cache, cluster
from ident_utils.errors import IdentError
from ident_utils.experiments.contribution import attribute_text
from ident_utils.experiments.rank_bound import measure_nullity
from ident_utils.models import Encoder
from ident_utils.paths import ROOT

HERE = Path(__file__).parent


@pytest.fixture(scope="module")
def encoder(tmp_path_factory) -> Encoder:
    return saved_encoder(tmp_path_factory.mktemp("model"))


@pytest.fixture(autouse=True)
def empty(monkeypatch, tmp_path):
    monkeypatch.setattr(cache, "RESULTS", str(tmp_path / "results"))


@pytest.fixture(scope="module")
def two_workers() -> Iterator[str]:
    with cluster.local_cluster(2) as address:
        yield address


def items(count: int, probes: int = 2) -> list[dict]:
    texts = make_texts(count, 20)
    return [{"text": text, "probes": probes, "seed": i, "truncate": None} for i, text in enumerate(texts)]


def contributions(found: list) -> list:
    return [one.contributions.tolist() for one in found]


def test_results_are_those_of_one_process(encoder, two_workers, monkeypatch, tmp_path):
    texts = make_texts(3, 30)
    alone = measure_nullity(encoder, texts, [8, 12]), cluster.for_each(attribute_text, encoder, items(4), "texts")
    monkeypatch.setattr(cache, "RESULTS", str(tmp_path / "other"))
    assert cluster.check_cluster(two_workers) == 2
    monkeypatch.setenv(cluster.SCHEDULER, two_workers)
    together = measure_nullity(encoder, texts, [8, 12]), cluster.for_each(attribute_text, encoder, items(4), "texts")
    assert together[0].equals(alone[0])
    assert contributions(together[1]) == contributions(alone[1])


def test_what_is_kept_here_is_not_sent(encoder, monkeypatch):
    kept = cluster.for_each(attribute_text, encoder, items(2), "texts")
    monkeypatch.setattr(cluster, "ANSWER_TIMEOUT", 1)
    monkeypatch.setenv(cluster.SCHEDULER, "tcp://127.0.0.1:9")  # nobody listens there
    assert contributions(cluster.for_each(attribute_text, encoder, items(2), "texts")) == contributions(kept)
    with pytest.raises(IdentError, match=r"No Dask scheduler answers at tcp://127\.0\.0\.1:9"):
        cluster.for_each(attribute_text, encoder, items(3), "texts")


def test_a_killed_worker_costs_nothing(encoder, monkeypatch):
    expected = contributions(cluster.for_each(attribute_text, encoder, items(12, probes=16), "texts"))
    monkeypatch.setattr(cache, "RESULTS", cache.RESULTS + "-of-cluster")
    with cluster.local_cluster(2) as address:
        victim = next(iter(cluster._connected(address).run(os.getpid).values()))

        def kill_when_it_works() -> None:
            while not any(Path(cache.RESULTS).rglob("output.pkl")):
                time.sleep(0.01)
            os.kill(victim, signal.SIGKILL)

        killer = threading.Thread(target=kill_when_it_works)
        killer.start()
        monkeypatch.setenv(cluster.SCHEDULER, address)
        found = contributions(cluster.for_each(attribute_text, encoder, items(12, probes=16), "texts"))
        killer.join()
        assert found == expected
        assert victim not in cluster._connected(address).run(os.getpid).values()


def test_an_error_of_a_text_reaches_the_caller(encoder, two_workers, monkeypatch):
    monkeypatch.setenv(cluster.SCHEDULER, two_workers)
    with pytest.raises(IdentError, match="none of them blank"):
        cluster.for_each(attribute_text, encoder, [items(1)[0] | {"text": " "}], "texts")


@pytest.fixture
def own_scheduler(tmp_path) -> Iterator[tuple[str, list[subprocess.Popen]]]:
    """Start a scheduler as a user would, and end what the test starts beside it."""
    file, processes = tmp_path / "scheduler.json", []
    start = [sys.executable, "-m", "distributed.cli.dask_scheduler", "--scheduler-file", str(file)]
    start += ["--port", "0", "--host", "127.0.0.1", "--no-dashboard"]
    processes.append(subprocess.Popen(start, stderr=subprocess.DEVNULL))
    while not file.exists():
        time.sleep(0.05)
    yield json.loads(file.read_text())["address"], processes
    for process in reversed(processes):
        process.terminate()
        process.wait(10)


def test_workers_with_other_code_are_refused(own_scheduler, tmp_path):
    address, processes = own_scheduler
    package = shutil.copytree(ROOT / "ident_utils", tmp_path / "elsewhere" / "ident_utils")
    with (package / "suite.py").open("a") as file:
        file.write("\nOTHER = 1\n")
    start = [sys.executable, "-m", "distributed.cli.dask_worker", address, "--no-nanny", "--no-dashboard"]
    environment = os.environ | {"PYTHONPATH": str(package.parent)}
    processes.append(subprocess.Popen(start, env=environment, cwd=tmp_path, stderr=subprocess.DEVNULL))
    with pytest.raises(IdentError, match=r"The worker \S+ has ident_utils \w{12}, not \w{12}; install the same"):
        cluster.check_cluster(address)


def test_a_scheduler_without_workers_is_one_sentence(own_scheduler, monkeypatch):
    monkeypatch.setattr(cluster, "ANSWER_TIMEOUT", 1)
    with pytest.raises(IdentError, match="has no worker; start some with 'dask worker"):
        cluster.check_cluster(own_scheduler[0])


@pytest.mark.parametrize("address", ["127.0.0.1:9", "nonsense://x", "no.such.host.invalid:1"])
def test_an_address_where_nobody_answers_is_one_sentence(address, monkeypatch):
    monkeypatch.setattr(cluster, "ANSWER_TIMEOUT", 1)
    with pytest.raises(IdentError, match="No Dask scheduler answers"):
        cluster.check_cluster(address)


def test_no_worker_is_no_cluster():
    with pytest.raises(IdentError, match="at least 1, not 0"), cluster.local_cluster(0):
        pass
