"""The sentence model as a child process of the worker: texts in, vectors out, no memory held between jobs."""

from collections.abc import Callable, Sequence

from django.conf import settings

from rlviewer.analysis.vectors import Embedded
from rlviewer.lib.child_process import ChildProcess, ChildProcessError
from training.sentences import RECORD_BYTES, pack_request

ANSWER_SECONDS = 180.0  # for loading the model and one request, on a machine that trains

EmbedderError = ChildProcessError


class Embedder(ChildProcess):
    """Use it with `with`."""

    def __init__(self) -> None:
        super().__init__(
            "training.embed",
            folder=settings.BASE_DIR,
            title="the embedding process",
            answer_seconds=ANSWER_SECONDS,
        )

    def embed(self, texts: Sequence[str], *, tick: Callable[[], None]) -> list[Embedded]:
        """One answer a text; `tick` and what is raised as in `exchange`."""
        size = RECORD_BYTES * len(texts)
        answer = self.exchange(pack_request(texts), lambda _: size, tick=tick)
        records = (answer[at : at + RECORD_BYTES] for at in range(0, len(answer), RECORD_BYTES))
        return [Embedded(record[1:], bool(record[0])) for record in records]
