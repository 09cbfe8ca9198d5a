"""Where there is no GPU, kernels run on CPU tensors in Triton's interpreter. It must be chosen before they are imported."""

import os

import pytest
import torch

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"


@pytest.fixture
def device() -> str:
    return "cuda" if torch.cuda.is_available() else "cpu"
