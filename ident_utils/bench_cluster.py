"""Benchmark of work on many texts: one worker process against two, each on one thread."""

import time

from ident_utils.cluster import compute_on_cluster, local_cluster
from ident_utils.corpora import load_corpus
from ident_utils.experiments.contribution import attribute_text
from ident_utils.models import load_encoder
from ident_utils.timing import Line

MODEL, CORPUS = "minilm-l6", "sotu-pairs"


def bench_workers(texts: int = 24, probes: int = 2) -> Line:
    """Compare one worker with two on Hidden Token Attribution; say how much of their time is not computation."""
    encoder = load_encoder(MODEL)
    drawn = load_corpus(CORPUS, texts)
    items = [{"text": text, "probes": probes, "seed": number, "truncate": None} for number, text in enumerate(drawn)]
    walls, outside = [], []
    for workers in (1, 2):
        with local_cluster(workers) as address:
            warm = [items[0] | {"seed": texts + number} for number in range(4 * workers)]  # loads the model
            compute_on_cluster(address, attribute_text, encoder, warm, "texts")
            began = time.perf_counter()
            computing = compute_on_cluster(address, attribute_text, encoder, items, "texts")
            walls.append(time.perf_counter() - began)
            outside.append(1 - computing / workers / walls[-1])
    pace = " and ".join(f"{60 * texts / wall:.0f}" for wall in walls)
    apart = " and ".join(f"{share:.0%}" for share in outside)
    return Line(
        "attribution of many texts, one worker / two workers",
        f"{encoder.name}, {texts} texts of {CORPUS}, k = {probes}, one thread each",
        walls[0],
        walls[1],
        f"{pace} texts a minute; {apart} of the workers' time outside the computation",
    )
