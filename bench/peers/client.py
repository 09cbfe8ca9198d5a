"""Feeds rollouts to a peer as OpenTelemetry traces, and reads them back. Run by the peer's own Python.

client.py PEER PORT send|read ROLLOUTS.arrow
"""

import hashlib
import http.client
import json
import sys
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa

ARRAYS = {
    "token_ids": np.int32,
    "sampler_logprobs": np.float32,
    "policy_logprobs": np.float32,
    "token_advantages": np.float32,
}
# Where each peer keeps what a person reads.
TEXTS = {
    "mlflow": {"prompt": "mlflow.spanInputs", "completion": "mlflow.spanOutputs"},
    "phoenix": {"prompt": "input.value", "completion": "output.value"},
}
HEADERS = {"mlflow": {"x-mlflow-experiment-id": "0"}, "phoenix": {}}
PROJECT = "bench"
BATCH = 32
BASE_NANOSECONDS = 1_700_000_000_000_000_000


def array_text(values: np.ndarray) -> str:
    """A JSON list. Nine digits give every float32 back exactly and take less room than Python's own."""
    if values.dtype.kind == "f":
        return "[" + ",".join(np.char.mod("%.9g", values)) + "]"
    return json.dumps(values.tolist(), separators=(",", ":"))


def trace_id(key: int) -> bytes:
    return hashlib.sha256(str(key).encode()).digest()[:16]


def requests(table: pa.Table, texts: dict[str, str]) -> Iterator[bytes]:
    """Bodies of `BATCH` traces with one span each."""
    # Only the peers' environments have these.
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
    from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue

    def attribute(name: str, text: str) -> KeyValue:
        return KeyValue(key=name, value=AnyValue(string_value=text))

    for start in range(0, table.num_rows, BATCH):
        request = ExportTraceServiceRequest()
        resource = request.resource_spans.add()
        resource.resource.attributes.append(attribute("openinference.project.name", PROJECT))
        spans = resource.scope_spans.add().spans
        part = table.slice(start, BATCH)
        columns = {name: part[name].to_pylist() for name in ("key", "reward", *texts)}
        arrays = {name: part[name].combine_chunks() for name in ARRAYS}
        for row, key in enumerate(columns["key"]):
            begun = BASE_NANOSECONDS + key * 1000
            span = spans.add(
                trace_id=trace_id(key), span_id=trace_id(key)[:8], name="rollout", kind=1,
                start_time_unix_nano=begun, end_time_unix_nano=begun + 500,
            )  # fmt: skip
            span.status.code = 1
            span.attributes.extend(attribute(name, columns[column][row].decode()) for column, name in texts.items())
            span.attributes.extend(
                attribute(name, array_text(values[row].values.to_numpy())) for name, values in arrays.items()
            )
            span.attributes.append(KeyValue(key="reward", value=AnyValue(double_value=columns["reward"][row])))
        yield request.SerializeToString()


def send(peer: str, port: int, table: pa.Table) -> dict[str, Any]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=300)
    headers = {"Content-Type": "application/x-protobuf", **HEADERS[peer]}
    for body in requests(table, TEXTS[peer]):
        connection.request("POST", "/v1/traces", body, headers)
        answer = connection.getresponse()
        said = answer.read()
        if answer.status != 200:
            raise RuntimeError(f"{answer.status}: {said[:500]!r}")
    return {"sent": table.num_rows}


def read(peer: str, port: int, table: pa.Table) -> dict[str, Any]:
    """Digests of what came back against those of what was sent."""
    found = READERS[peer](port, table)
    equal = compared = 0
    for row in table.to_pylist():
        attributes = found[row["key"]]
        for column, name in TEXTS[peer].items():
            compared += 1
            equal += digest(as_text(attributes.get(name)).encode()) == digest(row[column])
        for column, kind in ARRAYS.items():
            value = attributes.get(column)
            got = json.loads(value) if isinstance(value, str) else value
            compared += 1
            equal += digest(np.array(got, kind).tobytes()) == digest(np.array(row[column], kind).tobytes())
    return {"equal": equal, "compared": compared}


def as_text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def read_phoenix(port: int, table: pa.Table) -> dict[int, dict[str, Any]]:
    keys = {trace_id(key).hex(): key for key in table["key"].to_pylist()}
    found: dict[int, dict[str, Any]] = {}
    cursor: str | None = ""
    while cursor is not None and len(found) < len(keys):
        page = get(port, f"/v1/projects/{PROJECT}/spans?limit=100" + (f"&cursor={cursor}" if cursor else ""))
        for span in page["data"]:
            key = keys.get(span["context"]["trace_id"])
            if key is not None:
                found[key] = span["attributes"]
        cursor = page["next_cursor"]
    return found


def read_mlflow(port: int, table: pa.Table) -> dict[int, dict[str, Any]]:
    import mlflow

    mlflow.set_tracking_uri(f"http://127.0.0.1:{port}")
    client = mlflow.MlflowClient()
    found = {}
    for key in table["key"].to_pylist():
        (span,) = client.get_trace(f"tr-{trace_id(key).hex()}").data.spans
        found[key] = dict(span.attributes)
    return found


READERS: dict[str, Callable[[int, pa.Table], dict[int, dict[str, Any]]]] = {
    "mlflow": read_mlflow,
    "phoenix": read_phoenix,
}


def get(port: int, path: str) -> Any:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=300)
    connection.request("GET", path)
    answer = connection.getresponse()
    body = answer.read()
    if answer.status != 200:
        raise RuntimeError(f"{path}: {answer.status}: {body[:500]!r}")
    return json.loads(body)


def main() -> None:
    peer, port, what, path = sys.argv[1:]
    sys.stdout.write('{"ready": true}\n')
    sys.stdout.flush()
    sys.stdin.readline()
    with pa.memory_map(path) as file:
        table = pa.ipc.open_file(file).read_all()
    answer = {"send": send, "read": read}[what](peer, int(port), table)
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()
    # The peer may be killed while we hold its connection; the parent ends us.
    sys.stdin.readline()


if __name__ == "__main__":
    main()
