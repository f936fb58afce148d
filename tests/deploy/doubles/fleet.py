"""Containers: for each model in service an engine in a process, set up by its environment alone.

What starts is what a container of that image would start from the variables that CreateModel
was sent, with the container's own defaults for what they leave out. So a setting that was
rendered wrongly, or not at all, is missing here as it would be there. The tables below are of
the containers (LMI's configuration guide; the entry points of the vLLM, SGLang and TGI containers,
TGI's launcher, whose options are variables too), not of servetune.

The engine is the simulated one, or a real vLLM. What it says goes to the logs' double.
"""

from __future__ import annotations

import subprocess
import sys
import time
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from servetune.servers import free_port

if TYPE_CHECKING:
    from doubles.server import FakeAws

#: Where SageMaker mounts what a model's data source names.
MODEL_FOLDER = "/opt/ml/model"
START_S = 240.0

#: LMI's names that are not vLLM's in upper case, behind OPTION_.
_LMI = {
    "TENSOR_PARALLEL_DEGREE": "tensor-parallel-size",
    "PIPELINE_PARALLEL_DEGREE": "pipeline-parallel-size",
    "MAX_ROLLING_BATCH_SIZE": "max-num-seqs",
    "MAX_ROLLING_BATCH_PREFILL_TOKENS": "max-num-batched-tokens",
    "QUANTIZE": "quantization",
    "CPU_OFFLOAD_GB_PER_GPU": "cpu-offload-gb",
}
_LMI_OWN = {"ASYNC_MODE", "ROLLING_BATCH", "ENTRYPOINT", "MODEL_LOADING_TIMEOUT"}


#: Variables of TGI's container that are no option of its launcher under the same name.
_TGI = {"SM_NUM_GPUS": "num-shard"}
_TGI_OWN = {
    *("HF_MODEL_ID", "MESSAGES_API_ENABLED", "SERVETUNE_MODEL"),
    *("PREFIX_CACHING", "PREFILL_CHUNKING"),  # the server behind the launcher reads them
}


class Words(NamedTuple):
    """An engine's command line."""

    model: str
    arguments: list[str]
    engine: str = "vllm"


def words_of(image: str, environment: Mapping[str, str]) -> Words:
    """What the container behind an image starts."""
    if "djl-inference" in image:
        return _lmi_words(environment)
    if "/vllm:" in image or "huggingface-vllm" in image:
        return _prefixed_words(environment, "SM_VLLM_", "MODEL", "vllm")
    if "/sglang:" in image:
        return _prefixed_words(environment, "SM_SGLANG_", "MODEL_PATH", "sglang")
    if "-tgi-inference:" in image:
        return _tgi_words(environment)
    raise AssertionError(f"the fleet knows no container of {image}")


def _lmi_words(environment: Mapping[str, str]) -> Words:
    given = {
        _LMI.get(name, name.lower().replace("_", "-")): value
        for key, value in environment.items()
        if (name := key.removeprefix("OPTION_")) != key and name not in _LMI_OWN
    }
    given.setdefault("max-num-seqs", "32")  # the trap: nobody asked for it
    workers = environment.get("SERVING_MAX_WORKERS", "1")
    if workers != "1":  # one engine each; behind one address it is a group of as many
        given["data-parallel-size"] = workers
    arguments = []
    for name, value in given.items():
        if value == "true":
            arguments.append(f"--{name}")
        elif value == "false":
            arguments.append(f"--no-{name}")
        else:
            arguments.append(f"--{name}={value}")
    return Words(environment["HF_MODEL_ID"], arguments)


def _prefixed_words(
    environment: Mapping[str, str], prefix: str, model_key: str, engine: str
) -> Words:
    arguments, model = [], ""
    for key, value in environment.items():
        name = key.removeprefix(prefix)
        if name == key:
            continue
        if name == model_key:
            model = value
        elif value == "true":
            arguments.append(f"--{name.lower().replace('_', '-')}")
        else:
            arguments.append(f"--{name.lower().replace('_', '-')}={value}")
    return Words(model, arguments, engine)


def _tgi_words(environment: Mapping[str, str]) -> Words:
    arguments = [
        f"--{_TGI.get(key, key.lower().replace('_', '-'))}={value}"
        for key, value in environment.items()
        if key not in _TGI_OWN
    ]
    return Words(environment["HF_MODEL_ID"], arguments, "tgi")


def _logged(image: str, lines: list[str]) -> list[str]:
    """What of an engine's lines gets into the logs: LMI starts vLLM without its server, which is
    what lists the arguments.
    """
    if "djl-inference" not in image:
        return lines
    return [line for line in lines if "non-default args" not in line]


class Fleet:
    """The containers of a double.

    Args:
        double: Whose endpoints are served.
        folder: For logs and mounted models.
        program: That takes vLLM's words, `serve` and the model first; the simulated engine
            where none is named.
        environ: Of the engine's processes.

    Attributes:
        overrides: Variables that an image sets or, with `None`, loses, whatever it was sent.
    """

    def __init__(
        self,
        double: FakeAws,
        folder: Path,
        *,
        program: tuple[str, ...] = (),
        environ: Mapping[str, str] | None = None,
    ) -> None:
        self.double, self.folder = double, folder
        self.program, self.environ = program, environ
        self.overrides: dict[str, str | None] = {}
        self.containers: dict[tuple[str, str | None], Container] = {}
        double.runtime.containers = self.url_of

    def url_of(self, endpoint: str, component: str | None) -> str | None:
        """The container that answers."""
        found = self.containers.get((endpoint, component))
        return found.url if found else None

    def start(self, endpoint: str, component: str | None = None) -> Container:
        """Start what an endpoint (or a component on it) runs, and wait until it is healthy."""
        sent = self._model(endpoint, component)["PrimaryContainer"]
        words = words_of(sent["Image"], self.log_of(endpoint, component))
        group = (
            f"/aws/sagemaker/InferenceComponents/{component}"
            if component
            else f"/aws/sagemaker/Endpoints/{endpoint}"
        )
        port = free_port("127.0.0.1")
        program = self._program(endpoint, words.engine)
        command = [*program, self._mounted(words.model, sent), *words.arguments]
        container = Container(
            [*command, "--host=127.0.0.1", f"--port={port}"],
            f"http://127.0.0.1:{port}",
            self.folder / f"{component or endpoint}-{port}.log",
            self.environ,
        )
        self.containers[endpoint, component] = container
        container.wait_healthy()
        self.double.services.say(group, _logged(sent["Image"], container.lines()))
        return container

    def log_of(self, endpoint: str, component: str | None = None) -> dict[str, str]:
        """The variables that a container has."""
        sent = self._model(endpoint, component)["PrimaryContainer"]["Environment"]
        environment = {**sent, **self.overrides}
        return {key: value for key, value in environment.items() if value is not None}

    def close(self) -> None:
        for container in self.containers.values():
            container.stop()
        self.containers.clear()

    def __enter__(self) -> Fleet:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _model(self, endpoint: str, component: str | None) -> dict[str, Any]:
        rows = self.double.control.rows
        if component:
            asked = rows["InferenceComponent", component]["request"]
            name = asked["Specification"]["ModelName"]
        else:
            name = self._variant(endpoint)["ModelName"]
        model: dict[str, Any] = rows["Model", name]["request"]
        return model

    def _variant(self, endpoint: str) -> dict[str, Any]:
        rows = self.double.control.rows
        config = rows["Endpoint", endpoint]["request"]["EndpointConfigName"]
        variant: dict[str, Any] = rows["EndpointConfig", config]["request"]["ProductionVariants"][0]
        return variant

    def _program(self, endpoint: str, engine: str) -> list[str]:
        if self.program:
            return [*self.program, "serve"]
        machine = self._variant(endpoint)["InstanceType"]
        simulated = [sys.executable, "-m", "servetune.cli.serve_simulated", "--engine", engine]
        return [*simulated, "--instance", machine]

    def _mounted(self, model: str, sent: dict[str, Any]) -> str:
        """A folder with what the model's data source holds, where that is where it loads from."""
        if model != MODEL_FOLDER:
            return model
        uri = sent["ModelDataSource"]["S3DataSource"]["S3Uri"]
        bucket, _, prefix = uri.removeprefix("s3://").partition("/")
        folder = self.folder / "mounted"
        for (where, key), held in self.double.s3.objects.items():
            if where == bucket and key.startswith(prefix):
                path = folder / key.removeprefix(prefix)
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(held["body"])
        return str(folder)


class Container:
    """One engine."""

    def __init__(
        self, command: list[str], url: str, log_path: Path, environ: Mapping[str, str] | None
    ) -> None:
        self.command, self.url, self.log_path = command, url, log_path
        with log_path.open("wb") as log:
            self._process = subprocess.Popen(
                command, stdout=log, stderr=subprocess.STDOUT, env=environ
            )

    def lines(self) -> list[str]:
        return self.log_path.read_text("utf-8", "replace").splitlines()

    def wait_healthy(self) -> None:
        deadline_s = time.monotonic() + START_S
        while self._process.poll() is None and time.monotonic() < deadline_s:
            try:
                with urllib.request.urlopen(f"{self.url}/health", timeout=5):
                    return
            except OSError:
                time.sleep(0.1)
        self.stop()
        raise RuntimeError(f"{self.command} is not healthy:\n" + "\n".join(self.lines()[-30:]))

    def stop(self) -> None:
        self._process.terminate()
        try:
            self._process.wait(timeout=30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
