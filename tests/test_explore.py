"""The explorer without a browser: what it measures, what it says, and the page behind its widgets."""

import csv
import io
import socket
import time

import numpy as np
import pytest
import torch
from command import ident
from encoders import make_texts, saved_encoder, tiny_encoder
from plotly.callbacks import InputDeviceState, Points

from ident_utils.attention import effective_attention, row_intervals
from ident_utils.attribution import attribute
from ident_utils.explore import pictures, study, tables
from ident_utils.explore.page import Page
from ident_utils.notebooks import EXPLORER, notebook_paths
from ident_utils.paths import NOTEBOOKS
from ident_utils.progress import Stage, listening, track

TEXT = ("The old boat opens slowly and the boat is old.", "Slowly the old boat opens.")
MARKUP = "<script>alert('boat')</script> & $old$"


@pytest.fixture(scope="module")
def read() -> study.Read:
    return study.read_text(tiny_encoder("bert"), TEXT)


@pytest.fixture(scope="module")
def shares(read):
    return study.contributions(read)


def test_a_head_is_that_of_the_paper(read):
    head = read.head(2, 1)
    raw, values = read.trace.attention[1, 0], read.trace.values[1, 0]
    assert head.raw.dtype is torch.float64
    assert torch.equal(head.raw, raw)
    assert torch.allclose(head.effective, effective_attention(raw, values).weights)
    assert torch.allclose(head.removed @ values, torch.zeros_like(values), atol=1e-12)
    assert read.freedom == max(0, read.n - read.encoder.head_dim - 1) > 0


def test_another_row_is_a_distribution_with_the_same_output_at_the_further_end(read):
    head = read.head(1, 1)
    intervals = row_intervals(head.raw[3], head.values)
    for column in range(read.n):
        found = head.freedom(3, column)
        assert found.low == pytest.approx(intervals.low[0, column].item(), abs=1e-7)
        assert found.high == pytest.approx(intervals.high[0, column].item(), abs=1e-7)
        assert found.output_change < 1e-12
        assert found.other.min() >= 0 and found.other.sum().item() == pytest.approx(1, abs=1e-12)
        own, reached = found.own[column].item(), found.other[column].item()
        end = found.low if own - found.low > found.high - own else found.high
        assert reached == pytest.approx(end, abs=1e-6)


def test_a_text_begins_with_the_least_certain_of_the_largest_weights(read):
    head = read.head(2, 1)
    widths = []
    for row in range(read.n):
        intervals = row_intervals(head.raw[row], head.values)
        widths.append((intervals.high - intervals.low)[0, head.raw[row].argmax()].item())
    found = head.least_certain(rows=read.n)
    assert found.row == int(np.argmax(widths)) and found.column == int(head.raw[found.row].argmax())
    some = head.least_certain(rows=2)
    assert some.row in (0, read.n - 1) and some.high - some.low <= found.high - found.low


def test_a_short_text_pins_its_weights_down():
    short = study.read_text(tiny_encoder("bert"), "boat")
    found = short.head(1, 1).freedom(0, 1)
    assert short.freedom == 0
    assert found.low == found.high == found.own[1]
    assert torch.equal(found.other, found.own)
    assert "pins it down" in tables.freedom_html(found)
    assert "nothing is removed" in tables.head_html(short.head(1, 1))


def test_a_causal_row_is_free_only_among_the_tokens_it_sees():
    read = study.read_text(tiny_encoder("gpt2"), " ".join(TEXT))
    head, row = read.head(1, 1), read.n - 2
    assert head.effective is None and head.removed is None
    found = head.freedom(row, 0)
    assert found.low < found.high
    assert found.other[row + 1 :].abs().max() == 0 and found.output_change < 1e-12
    unseen = head.freedom(row, row + 1)
    assert (unseen.low, unseen.high, unseen.own[row + 1].item()) == (0, 0, 0)
    assert "causal" in tables.head_html(head)
    drawn = pictures.Pictures()
    drawn.draw_head(head)
    assert drawn.attention.data[1].z is None


def test_contributions_are_those_of_the_suite(read, shares):
    again = attribute(read.encoder, TEXT, probes=study.PROBES)
    assert torch.equal(shares.contributions, again.contributions)


def test_the_naive_mapping_identifies_as_by_hand(read):
    found = study.identified(read, make_texts(20, 8))
    hidden = torch.nn.functional.normalize(read.trace.hidden.double(), dim=-1)
    for layer in range(1, len(hidden)):
        likeness = hidden[layer] @ hidden[0].T
        best = likeness.diagonal() >= likeness.max(1).values - 1e-12
        assert torch.equal(found["naive"][layer - 1], best)
    assert {tuple(hit.shape) for hit in found.values()} == {(read.encoder.n_layers, read.n)}
    html = tables.identified_html(read, found)
    assert html.count("<tr>") == 1 + 2 * read.encoder.n_layers
    assert html.count("✓") == sum(int(hit.sum()) for hit in found.values())


def test_words_of_the_user_are_escaped_everywhere():
    encoder = tiny_encoder("roberta")  # its pieces are those of the text itself
    read = study.read_text(encoder, MARKUP)
    assert any("<" in token for token in read.tokens)
    head, shares = read.head(1, 1), study.contributions(read)
    said = [
        tables.tokens_html(read),
        tables.freedom_html(head.freedom(1, 1)),
        tables.contribution_html(shares, 1),
        tables.identified_html(read, {"naive": torch.ones(encoder.n_layers, read.n, dtype=torch.bool)}),
    ]
    assert not any("<script" in html for html in said)
    drawn = pictures.Pictures()
    drawn.draw_head(head)
    drawn.draw_row(head.freedom(1, 1))
    drawn.draw_contributions(shares, 1)
    labels = [*drawn.attention.layout.xaxis.ticktext, *drawn.contribution.layout.xaxis.ticktext]
    assert not any("<" in label or "$" in label for label in labels)


def test_files_hold_the_numbers_of_the_page(read, shares):
    head = read.head(2, 2)
    rows = list(csv.DictReader(io.StringIO(tables.head_csv(head).decode())))
    assert len(rows) == read.n**2
    sixth = rows[5 * read.n + 3]
    assert (sixth["row"], sixth["column"], sixth["row_token"]) == ("6", "4", read.tokens[5])
    assert float(sixth["raw"]) == pytest.approx(head.raw[5, 3].item(), rel=1e-5)
    assert float(sixth["effective"]) + float(sixth["removed"]) == pytest.approx(float(sixth["raw"]), abs=1e-5)
    rows = list(csv.DictReader(io.StringIO(tables.contributions_csv(shares).decode())))
    assert len(rows) == read.encoder.n_layers * read.n**2
    last = rows[-1]
    assert float(last["contribution"]) == pytest.approx(shares.contributions[-1, -1, -1].item(), rel=1e-5)
    hit = {"naive": torch.ones(read.encoder.n_layers, read.n, dtype=torch.bool)}
    with np.load(io.BytesIO(tables.everything_npz(read, head, shares, hit)), allow_pickle=False) as file:
        assert np.array_equal(file["effective"], head.effective.numpy())
        assert np.array_equal(file["contributions"], shares.contributions.numpy())
        assert file["identified naive"].all()
        about = "\n".join(file["about"])
    for fact in ("layer: 2", "head: 2", "seed: 0", f"probes: {study.PROBES}", repr(TEXT[0])[1:-1]):
        assert fact in about
    picture = tables.head_svg(head)
    assert picture.startswith(b"<?xml") and b"<text" in picture


def test_figures_suit_the_screen():
    drawn = pictures.Pictures()
    before = drawn.attention.layout.yaxis2.domain
    drawn.show_on(dark=True, width=390)
    assert drawn.attention.layout.yaxis2.domain != before
    assert drawn.attention.layout.xaxis2.domain == (0, 1), "maps stand under one another"
    assert drawn.attention.layout.font.color == pictures.INK[True]
    drawn.show_on(dark=False, width=1280)
    assert drawn.attention.layout.yaxis2.domain == before


def test_a_listener_hears_every_step_and_may_end_the_loop():
    heard = []
    with listening(heard.append):
        assert list(track([1, 2], "steps")) == [1, 2]
    assert heard == [Stage("steps", 0, 2), Stage("steps", 1, 2), Stage("steps", 2, 2)]
    assert list(track([1], "nobody listens")) == [1]

    def stop(stage: Stage) -> None:
        raise RuntimeError

    with listening(stop), pytest.raises(RuntimeError):
        list(track([1, 2], "steps"))


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> str:
    folder = tmp_path_factory.mktemp("model")
    saved_encoder(folder)
    return str(folder)


@pytest.fixture
def page(model, monkeypatch) -> Page:
    texts = make_texts(20, 8)
    monkeypatch.setattr(study, "load_corpus", lambda name, n: texts)
    made = Page()
    made.model.value = model
    made.first.value, made.second.value = TEXT
    return made


def finished(page: Page) -> Page:
    page.start()
    page._work.join(60)
    return page


def test_the_page_shows_all_that_was_found(page):
    finished(page)
    assert page.error.value == "" == page.status.value
    assert "boat" in page.said["tokens"].value
    assert all(page.said[part].value for part in page.said)
    assert all(file.ready for file in page.files)
    encoder = page._read.encoder
    assert [len(page.layer.options), len(page.head.options)] == [encoder.n_layers, encoder.n_heads]
    assert page.cancel.disabled
    assert page._pictures.contribution.data[0].z.shape == (encoder.n_layers, page._read.n)


def test_what_was_chosen_stays_while_the_text_is_the_same(page):
    finished(page)
    begin = page._read.head(page.layer.value, page.head.value).least_certain()
    assert (page.row.value, page.column.value, page.token.value) == (begin.row, begin.column, begin.row)
    page.layer.value = 1
    chosen = page.row.value, page.column.value, page.token.value = 1, 2, 4
    finished(page)
    assert (page.row.value, page.column.value, page.token.value) == chosen
    page.second.value = ""
    finished(page)
    assert page.layer.value == 1
    begin = page._read.head(1, page.head.value).least_certain()
    assert (page.row.value, page.column.value, page.token.value) == (begin.row, begin.column, begin.row)


def test_the_page_answers_to_lists_and_clicks(page):
    finished(page)
    n = page._read.n
    page.layer.value = 1
    assert "Layer 1" in page.said["head"].value
    page.row.value, page.column.value = 4, 5
    by_lists = page.said["weight"].value
    page.row.value = page.column.value = 0
    assert page.said["weight"].value != by_lists
    trace = page._pictures.attention.data[0]
    page._choose_weight(trace, Points(point_inds=[(4, 5)], xs=[5], ys=[4]), InputDeviceState())
    assert page.said["weight"].value == by_lists
    assert (page.row.value, page.column.value) == (4, 5)
    weights = page._pictures.attention.layout.shapes[1::2]
    assert [((mark.x0 + mark.x1) / 2, (mark.y0 + mark.y1) / 2) for mark in weights] == [(5, 4)] * 3
    page._choose_weight(trace, Points(point_inds=[(n, n)], xs=[n], ys=[n]), InputDeviceState())
    assert page.error.value == ""
    page.token.value = n - 1
    assert page._read.tokens[n - 1] in page.said["contribution"].value


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"first": " ", "second": ""}, "none of them blank"),
        ({"first": "boat " * 600, "second": ""}, "takes at most"),
        ({"model": ""}, "Choose a model"),
        ({"model": "no-such-model-here"}, "no-such-model-here"),
        ({"model": "/nowhere/at/all"}, "/nowhere/at/all"),
    ],
    ids=["blank", "too long", "no model", "unknown model", "no folder"],
)
def test_bad_input_gets_its_sentence_and_what_was_shown_stays(page, change, sentence):
    finished(page)
    shown = page.said["tokens"].value
    for name, value in change.items():
        getattr(page, name).value = value
    finished(page)
    assert sentence in page.error.value and "should not have" not in page.error.value
    assert page.said["tokens"].value == shown
    assert page.status.value == "" and page.cancel.disabled


def test_a_text_that_is_too_long_is_cut_when_asked_for(page):
    page.first.value, page.second.value, page.truncate.value = "boat " * 600, "", True
    page.start()
    while page._read is None and page._work.is_alive():
        time.sleep(0.05)
    page.stop()
    page._work.join(60)
    assert page.error.value == ""
    assert page._read.n == page._read.encoder.max_tokens


def test_work_can_be_cancelled_and_begun_again(page, monkeypatch):
    steps = []

    def slow(read: study.Read) -> None:
        for step in track(range(10_000), "slow steps"):
            steps.append(step)
            time.sleep(0.01)

    with monkeypatch.context() as patch:
        patch.setattr(study, "contributions", slow)
        page.start()
        while len(steps) < 3:
            time.sleep(0.01)
        assert "slow steps" in page.status.value and "<progress" in page.status.value
        assert not page.cancel.disabled
        page.stop()
        page._work.join(10)
        assert not page._work.is_alive() and len(steps) < 10_000
        assert "cancelled" in page.status.value and page.cancel.disabled
    assert finished(page).status.value == ""


def test_the_page_is_no_notebook_of_the_suite():
    assert (NOTEBOOKS / f"{EXPLORER}.ipynb").is_file()
    assert EXPLORER not in [path.stem for path in notebook_paths(NOTEBOOKS)]


def test_a_port_that_is_taken_gets_a_sentence():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        run = ident("explore", "--no-browser", "--port", str(taken.getsockname()[1]))
    assert run.returncode == 2
    assert "choose another with --port" in run.stderr and run.stderr.count("\n") == 1


def test_a_missing_page_gets_a_sentence(tmp_path):
    run = ident("explore", "--no-browser", IDENT_NOTEBOOKS=str(tmp_path))
    assert run.returncode == 2 and "restore the file" in run.stderr
