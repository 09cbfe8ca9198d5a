"""Sampling with vLLM as a server of its own, over as many GPUs as it takes: token ids in, token ids and numbers out.

Weights travel as one safetensors file in a folder that both see. Nothing is pickled, and a server that the trainer starts
listens on a socket that no other user can open.
"""

import contextlib
import http.client
import json
import os
import shutil
import socket
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from safetensors.torch import save_file

from training.config import ConfigError, SamplingConfig
from training.engines.base import (
    PromptRequest,
    SampledRow,
    Samples,
    SamplingError,
    Truncation,
    check_room,
    samples_from_rows,
)
from training.engines.vllm_common import (
    CONCURRENT,
    ENVIRONMENT,
    WORKER_EXTENSION,
    check_vocabulary,
    checkpoint_weights,
    engine_options,
    require_vllm,
    sampling_options,
    write_description,
)
from training.engines.vllm_process import ServerFailed, ServerProcess
from training.policy import Policy

REQUEST_SECONDS = 3600
SENDERS = 64
# What the server sends in place of a number that is not finite.
NOT_FINITE = -9999.0


class VllmServer:
    """A server that this process starts and ends, or one that `sampling.server_url` names.

    Args:
        folder: of this attempt; the weights for the server and its log lie there.

    Raises:
        ConfigError: vLLM is missing, does not start, or the server is none for this policy.
    """

    def __init__(self, policy: Policy, config: SamplingConfig, truncation: Truncation, *, folder: Path) -> None:
        self.policy = policy
        self.truncation = truncation
        self._key = "sampling.server_url" if config.server_url else "sampling.engine"
        self._weights = folder.resolve() / "vllm_weights"
        self._process: ServerProcess | None = None
        if config.server_url:
            self._address = checked_address(config.server_url)
        else:
            require_vllm()
            self._save_weights()
            self._process = ServerProcess(
                serve_arguments(policy, config, self._weights),
                environment=server_environment(config),
                log=folder / "vllm.log",
            )
            self._address = self._process.socket
        try:
            served = self._introduce()
            check_vocabulary(policy, served["vocabulary_tokens"], self._key)
        except BaseException:
            self.close()
            raise
        self._context_tokens = served["context_tokens"]
        self._is_stale = True

    def sample(
        self, requests: Sequence[PromptRequest], *, temperature: float, max_new_tokens: int, seed: int
    ) -> Samples:
        """Completions of all requests, sent together.

        Raises:
            SamplingError: a prompt does not fit, the server failed, or a log-probability is not finite.
        """
        check_room(requests, max_new_tokens, self._context_tokens)
        eos_ids = sorted(self.policy.eos_ids)
        bodies = []
        for number, request in enumerate(requests):
            options = sampling_options(
                number,
                request,
                self.truncation,
                eos_ids,
                temperature=temperature,
                max_new_tokens=max_new_tokens,
                seed=seed,
            )
            # The server refuses more completions in one request than it samples at a time.
            for first in range(0, request.count, CONCURRENT):
                part = {"n": min(CONCURRENT, request.count - first), "seed": options["seed"] + first}
                bodies.append({"token_ids": list(request.prompt_ids), "sampling_params": options | part})
        if self._is_stale:
            self._load_weights()
        with ThreadPoolExecutor(min(len(bodies), SENDERS)) as senders:
            answers = list(senders.map(lambda body: self._ask("/inference/v1/generate", body), bodies))
        rows = [row(choice) for answer in answers for choice in sorted(answer["choices"], key=lambda one: one["index"])]
        return samples_from_rows(rows, eos_ids, self.policy.device)

    def weights_changed(self) -> None:
        """They go over when the next sample is asked for."""
        self._is_stale = True

    def close(self) -> None:
        """End the server, if this process started it, and remove what was written for it."""
        if self._process is not None:
            self._process.close()
        shutil.rmtree(self._weights, ignore_errors=True)

    def _save_weights(self) -> None:
        write_description(self.policy, self._weights)
        weights = {name: value.detach().cpu().contiguous() for name, value in checkpoint_weights(self.policy).items()}
        save_file(weights, self._weights / "model.safetensors", metadata={"format": "pt"})

    def _load_weights(self) -> None:
        self._save_weights()
        self._call("reload_weights", weights_path=str(self._weights))
        # What the server remembers of prompts was computed with the weights before.
        if not self._ask("/reset_prefix_cache", {})["success"]:
            raise SamplingError(
                "the vLLM server cannot forget prompts that others still sample from; serve this run alone"
            )
        self._is_stale = False

    def _introduce(self) -> dict[str, int]:
        """Wait for the server and have it sample as the policy scores."""
        try:
            if self._process is not None:
                self._process.wait_until_ready(self._is_ready)
            served: dict[str, int] = self._call("score_as_policy")[0]
        except ServerFailed as error:
            raise ConfigError(self._key, str(error)) from error
        except SamplingError as error:
            raise ConfigError(
                self._key,
                f"{error}; the server needs VLLM_SERVER_DEV_MODE=1 and --worker-extension-cls {WORKER_EXTENSION}",
            ) from error
        return served

    def _is_ready(self) -> bool:
        with contextlib.suppress(OSError, http.client.HTTPException):
            return exchange(self._address, "GET", "/health", None)[0] == http.HTTPStatus.OK
        return False

    def _call(self, method: str, **keywords: str) -> list[Any]:
        """What each worker returns of one of its methods."""
        answer: list[Any] = self._ask("/collective_rpc", {"method": method, "kwargs": keywords})["results"]
        return answer

    def _ask(self, path: str, body: dict[str, Any]) -> Any:
        try:
            status, answer = exchange(self._address, "POST", path, body)
        except (OSError, http.client.HTTPException) as error:
            why = f" ({self._process.last_words()})" if self._process is not None else ""
            raise SamplingError(f"no answer from the vLLM server at {self._address}: {error!r}{why}") from error
        if status != http.HTTPStatus.OK:
            said = answer[:300].decode("utf-8", "replace")
            raise SamplingError(f"the vLLM server at {self._address} answers {path} with {status}: {said}")
        return json.loads(answer)


def serve_arguments(policy: Policy, config: SamplingConfig, weights: Path) -> list[str]:
    """Of `vllm serve`."""
    options = engine_options(policy, config) | {"tensor_parallel_size": config.tensor_parallel}
    arguments = [str(weights), "--enable-scale-out", "--disable-uvicorn-access-log"]
    for name, value in options.items():
        if value is not None:
            flag = "--" + name.replace("_", "-")
            arguments += [flag] if value is True else [flag, str(value)]
    return arguments


def server_environment(config: SamplingConfig) -> dict[str, str]:
    environment = ENVIRONMENT | os.environ | {"VLLM_SERVER_DEV_MODE": "1"}
    return environment | ({"CUDA_VISIBLE_DEVICES": config.server_devices} if config.server_devices else {})


def checked_address(url: str) -> str:
    """`host:port` of `http://host:port`, on this host or on one that RLVIEWER_VLLM_HOSTS lists (with commas).

    The server does what it is told, and whoever may start a run writes the address.

    Raises:
        ConfigError: another kind of address, or a host that is not listed.
    """
    try:
        parts = urlsplit(url)
        host = parts.hostname or ""
        is_plain = parts.scheme == "http" and host and parts.port and parts.path in ("", "/") and not parts.query
    except ValueError:
        is_plain = False
    if not is_plain:
        raise ConfigError("sampling.server_url", f"must be like http://127.0.0.1:8000, got {url!r}")
    if host not in {"127.0.0.1", "localhost", *os.environ.get("RLVIEWER_VLLM_HOSTS", "").split(",")}:
        raise ConfigError(
            "sampling.server_url", f"{host} is not this host; to allow it, list it in RLVIEWER_VLLM_HOSTS"
        )
    return parts.netloc


def exchange(address: str, method: str, path: str, body: Any) -> tuple[int, bytes]:
    """Status and answer of one request to `host:port`, or to the socket at a path."""
    connection: http.client.HTTPConnection
    connection = (UnixConnection if address.startswith("/") else http.client.HTTPConnection)(
        address, timeout=REQUEST_SECONDS
    )
    with contextlib.closing(connection):
        content = None if body is None else json.dumps(body)
        connection.request(method, path, content, {"Content-Type": "application/json"})
        answer = connection.getresponse()
        return answer.status, answer.read()


class UnixConnection(http.client.HTTPConnection):
    """HTTP over the socket at a path."""

    def __init__(self, path: str, timeout: float) -> None:
        super().__init__("localhost", timeout=timeout)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


def row(choice: dict[str, Any]) -> SampledRow:
    """After the sampled token's log-probability comes the entropy (see PolicySampler)."""
    pairs = [token["top_logprobs"] for token in choice["logprobs"]["content"]]
    logprobs, entropy = ([finite_or_nan(pair[place]["logprob"]) for pair in pairs] for place in (0, 1))
    return SampledRow(choice["token_ids"], logprobs, entropy)


def finite_or_nan(value: float) -> float:
    return float("nan") if value <= NOT_FINITE else value
