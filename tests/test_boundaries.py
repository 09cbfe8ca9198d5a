"""Imports stay on their side: each module is imported by a fresh Python, which then says what came along."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
# A later one may import an earlier one, never the other way; nothing imports live.
APP_ORDER = (
    "lib",
    "charts",
    "embedded",
    "accounts",
    "outbox",
    "runs",
    "ingest",
    "review",
    "search",
    "watch",
    "signal",
    "analysis",
    "counterfactual",
    "launch",
    "sweeps",
    "compare",
)
RANK = {app: rank for rank, app in enumerate(APP_ORDER)}
# What the web may import of the trainer.
LIGHT = (
    "training.checkpoint_files",
    "training.config",
    "training.model_folder",
    "training.params",
    "training.records",
    "training.spool",
    "training.vocabulary",
    "training.hooks",
    "training.sentences",
    "training.ranks",
    "training.replay_frames",
    "training.recipes",
    "training.rewards",
    "training.own",
    "training.legality",
    "training.tasks",
)


def modules_of(*folders: str) -> list[str]:
    paths = (path for folder in folders for path in sorted((ROOT / folder).rglob("*.py")))
    names = (path.relative_to(ROOT).with_suffix("") for path in paths if not path.name.startswith("test_"))
    return [".".join(name.parts).removesuffix(".__init__") for name in names]


def loaded_by(modules: list[str]) -> set[str]:
    """Top-level packages in memory after a fresh Python imported `modules`, under the web's settings."""
    script = f"""
import importlib, os, sys
os.environ.update(DJANGO_SETTINGS_MODULE="rlviewer.settings", RLVIEWER_SECRET_KEY="only-for-tests")
modules = {modules!r}
if modules[0].startswith("rlviewer"):
    import django
    django.setup()
for module in modules:
    importlib.import_module(module)
print("\\n".join(sorted(sys.modules)))
"""
    result = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, timeout=240)
    assert result.returncode == 0, result.stderr
    return {name.split(".")[0] for name in result.stdout.split()}


def test_the_web_never_loads_torch() -> None:
    modules = [name for name in modules_of("rlviewer") if ".management." not in name and ".migrations" not in name]
    loaded = loaded_by(modules)
    assert len(modules) > 20
    assert "django" in loaded
    assert not loaded & {"torch", "transformers", "triton", "kernels"}


def test_commands_do_not_load_torch_either() -> None:
    commands = [name for name in modules_of("rlviewer") if ".management.commands." in name]
    assert commands
    assert not loaded_by(commands) & {"torch", "transformers"}


def test_the_trainer_and_the_kernels_never_load_django() -> None:
    # vLLM loads that one, in its worker.
    training = [name for name in modules_of("training") if name != "training.engines.vllm_worker"]
    loaded = loaded_by([*training, *modules_of("kernels")])
    assert "torch" in loaded
    assert not loaded & {"django", "rlviewer", "celery", "psycopg"}


@pytest.mark.parametrize("module", [*LIGHT, "training.tasks.catalog"])
def test_what_the_web_uses_of_the_trainer_is_light(module: str) -> None:
    assert not loaded_by([module]) & {"torch", "transformers", "reasoning_gym", "kernels"}


def test_kernels_import_nothing_of_ours_and_look_like_no_release() -> None:
    loaded = loaded_by(["kernels"])
    assert not loaded & {"training", "rlviewer", "transformers"}
    import kernels

    assert not hasattr(kernels, "__version__")


def imports_of(path: Path) -> Iterator[str]:
    """Full names of the modules that a file imports, wherever in the file."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def app_of(module: str) -> str:
    parts = module.split(".")
    return parts[1] if len(parts) > 1 and parts[0] == "rlviewer" else ""


def app_files() -> list[Path]:
    return [path for path in sorted((ROOT / "rlviewer").rglob("*.py")) if len(path.relative_to(ROOT).parts) > 2]


def test_apps_import_only_what_stands_before_them() -> None:
    wrong = []
    for path in app_files():
        app = path.relative_to(ROOT).parts[1]
        for module in imports_of(path):
            other = app_of(module)
            if other in RANK and app in RANK and RANK[other] > RANK[app]:
                wrong.append(f"{path.relative_to(ROOT)} imports {module}")
            if other == "live" and app != "live":
                wrong.append(f"{path.relative_to(ROOT)} imports {module}")
    assert wrong == []


def test_every_app_has_its_place_in_the_order() -> None:
    apps = {path.name for path in (ROOT / "rlviewer").iterdir() if path.is_dir() and list(path.glob("*.py"))}
    assert apps - set(RANK) - {"live"} == set()


def test_the_web_imports_only_the_light_parts_of_the_trainer() -> None:
    wrong = []
    for path in sorted((ROOT / "rlviewer").rglob("*.py")):
        wrong += [
            f"{path.relative_to(ROOT)} imports {module}"
            for module in imports_of(path)
            if module.startswith("training.") and not module.startswith(LIGHT)
        ]
    assert wrong == []
