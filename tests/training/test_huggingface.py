import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def loaded(code: str) -> set[str]:
    """The packages that a fresh Python has loaded after `code`."""
    told = f"{code}\nimport sys; print(*sorted(name for name in sys.modules if '.' not in name))"
    done = subprocess.run([sys.executable, "-c", told], cwd=ROOT, check=True, capture_output=True, text=True)
    return set(done.stdout.split())


def test_the_trainer_loads_nothing_it_does_not_use() -> None:
    found = loaded("import training.run")
    assert "transformers" in found
    assert not found & {"scipy", "triton", "sklearn", "pandas", "peft", "vllm", "reasoning_gym", "django"}


@pytest.mark.parametrize("first", ["import transformers", "from transformers import LlamaForCausalLM"])
def test_it_stands_beside_what_has_been_loaded_before(first: str) -> None:
    assert {"transformers", "training"} <= loaded(f"{first}\nimport training.policy")


def test_what_was_left_out_can_be_loaded_later() -> None:
    assert {"scipy", "peft"} <= loaded("import training.policy\nimport scipy.optimize, peft")
