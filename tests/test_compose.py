"""docker-compose.yml and docs/configuration.md against the code: services, commands, variables."""

import ast
import importlib.util
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from rlviewer.embedded.supervise import worker_command

ROOT = Path(__file__).resolve().parents[1]
COMPOSE = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
OURS = sorted(name for name, service in SERVICES.items() if service["image"] == "rlviewer")
TABLES = [page for page in ("docs/configuration.md", "README.md") if (ROOT / page).exists()]
READERS = {"env_str", "env_bool", "env_int", "env_list", "env_path", "env_secret"}
# Read by the NVIDIA runtime, not by us.
OF_THE_RUNTIME = {"NVIDIA_VISIBLE_DEVICES", "NVIDIA_DRIVER_CAPABILITIES"}


def variables_in_code() -> set[str]:
    """The first argument of every call that reads the environment."""
    names = set()
    for path in (ROOT / "rlviewer").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in READERS:
                assert isinstance(node.args[0], ast.Constant), (
                    f"{path}:{node.lineno}: a name that cannot be searched for"
                )
                names.add(node.args[0].value)
    return names


def test_the_services_of_a_team() -> None:
    assert set(SERVICES) == {"postgres", "redis", "migrate", "web", "worker-cpu", "worker-gpu"}
    assert OURS == ["migrate", "web", "worker-cpu", "worker-gpu"]


@pytest.mark.parametrize("name", OURS)
def test_every_variable_is_one_that_the_code_reads(name: str) -> None:
    assert set(SERVICES[name]["environment"]) - OF_THE_RUNTIME <= variables_in_code()


@pytest.mark.parametrize("name", ["migrate", "web"])
def test_commands_are_modules_of_ours(name: str) -> None:
    python, flag, module = SERVICES[name]["command"]
    assert (python, flag) == ("python", "-m")
    assert importlib.util.find_spec(module)


@pytest.mark.parametrize("queue", ["cpu", "gpu"])
def test_workers_run_as_make_run_starts_them(queue: str) -> None:
    expected = [*worker_command()[2:]]
    expected[expected.index("--queues") + 1] = queue
    assert SERVICES[f"worker-{queue}"]["command"] == expected


def test_only_the_gpu_worker_asks_for_the_nvidia_runtime() -> None:
    assert {name: s["runtime"] for name, s in SERVICES.items() if "runtime" in s} == {"worker-gpu": "nvidia"}
    assert SERVICES["worker-gpu"]["profiles"] == ["gpu"]


def test_what_keeps_running_says_whether_it_is_well() -> None:
    assert {name for name, service in SERVICES.items() if "healthcheck" not in service} == {"migrate"}
    assert {name for name, s in SERVICES.items() if s["restart"] != "unless-stopped"} == {"migrate"}


def test_no_secret_has_a_default() -> None:
    text = (ROOT / "docker-compose.yml").read_text()
    used = re.findall(r"\$\{(\w+)([^}]*)\}", text)
    secrets = [(name, rest) for name, rest in used if re.search("PASSWORD|SECRET|HOSTS", name)]
    assert len({name for name, _ in secrets}) == 4
    assert all(rest.startswith(":?") for _, rest in secrets)


def test_volumes_and_dependencies_exist() -> None:
    for name, service in SERVICES.items():
        for mount in service.get("volumes", []):
            assert mount.split(":")[0] in COMPOSE["volumes"], name
        assert set(service.get("depends_on", {})) <= set(SERVICES), name
    # Where the image of PostgreSQL 18 keeps its data; another path would lose it with the container.
    assert SERVICES["postgres"]["volumes"] == ["postgres:/var/lib/postgresql"]


def test_only_the_web_is_reachable_from_outside() -> None:
    assert {name for name, service in SERVICES.items() if "ports" in service} == {"web"}


def test_the_image_copies_what_it_installs() -> None:
    text = (ROOT / "Dockerfile").read_text()
    for path in re.findall(r"requirements/\S+\.txt", text):
        assert (ROOT / path.lstrip("/")).exists(), path
    assert "USER rlviewer" in text


@pytest.mark.parametrize("page", TABLES)
def test_every_variable_is_in_the_table(page: str) -> None:
    listed = set(re.findall(r"^\| `([A-Z_]+)` \|", (ROOT / page).read_text(), re.MULTILINE))
    assert listed == variables_in_code()
