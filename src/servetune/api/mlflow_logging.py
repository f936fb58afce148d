"""Studies and load tests in MLflow: a run for each, and a nested run for each trial.

All that is sent goes through one thread of its own. A server that refuses, or that takes too long,
costs one note, never a trial.
"""

from __future__ import annotations

import importlib.util
import math
import os
import queue
import re
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

from servetune.api.notes import note, progress
from servetune.errors import InputError
from servetune.secret import redacted_text
from servetune.store import Artifacts, TrialRecord

#: Name of the experiment, where MLflow's own variable names none.
EXPERIMENT = "servetune"
#: Seconds that are waited for MLflow at the end of a run.
MOST_WAIT_S = 60.0
#: Characters of a parameter's value, and entries of one message; MLflow takes no more.
_MOST_VALUE, _MOST_ENTRIES = 500, 100
#: Characters that a name in MLflow cannot have.
_NO_NAME = re.compile(r"[^\w./ -]", re.ASCII)


def require_mlflow() -> None:
    """Refuse to begin without MLflow.

    Raises:
        InputError: It is not installed.
    """
    if importlib.util.find_spec("mlflow") is None:
        raise InputError(
            "logging to MLflow needs mlflow, which is not installed",
            hint="pip install 'servetune[mlflow]'",
        )


def mlflow_logger(uri: str | Path, *, name: str = "", experiment: str = "") -> MlflowLogger:
    """Logger to MLflow, as `on_progress` of `tune`; `finish` ends it.

    Args:
        uri: Address of a tracking server, or a folder for MLflow's file store.
        name: Name of the run in MLflow; one by the time where empty.
        experiment: Experiment; that of MLFLOW_EXPERIMENT_NAME, else `servetune`, where empty.

    Raises:
        InputError: MLflow is not installed.
    """
    return MlflowLogger(uri, name=name, experiment=experiment)


class _Ended(Protocol):
    """Event of a trial that ended."""

    @property
    def record(self) -> TrialRecord:
        """The trial."""
        ...


class MlflowLogger:
    """Logger of one study or load test; called with each `TrialDone`."""

    def __init__(self, uri: str | Path, *, name: str = "", experiment: str = "") -> None:
        require_mlflow()
        self._uri = _tracking_uri(uri)
        self._name = name or time.strftime("servetune-%Y%m%d-%H%M%S")
        self._experiment = experiment or os.environ.get("MLFLOW_EXPERIMENT_NAME", "") or EXPERIMENT
        self._client: Any = None
        self._experiment_id, self._run_id = "", ""
        self._failed = ""
        self._jobs: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work, name="mlflow", daemon=True)
        self._thread.start()
        self._jobs.put(self._begin)

    def __call__(self, event: _Ended) -> None:
        """Log a trial that ended."""
        self.log(event.record)

    def log(self, record: TrialRecord) -> None:
        """Log a trial as a nested run."""
        self._jobs.put(lambda: self._log(record))

    def finish(self, artifacts: Artifacts | None = None, *, interrupted: bool = False) -> None:
        """Log journal, summary and page, end the run, and wait for MLflow for a while.

        Args:
            artifacts: Files of the run; `None` where it has none.
            interrupted: Whether trials are missing.
        """
        self._jobs.put(lambda: self._end(artifacts, interrupted=interrupted))
        self._jobs.put(None)
        self._thread.join(MOST_WAIT_S)
        if self._thread.is_alive():
            note(f"note: MLflow at {self._uri} did not take all within {MOST_WAIT_S:.0f} s")
        elif self._failed:
            note(f"note: not all is in MLflow at {self._uri}: {self._failed}")
        else:
            progress(f"logged to MLflow at {self._uri}, run {self._name}")

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            if self._failed:
                continue
            try:
                job()
            except Exception as error:  # MLflow's own and its transport's are many
                first = (str(error).strip() or type(error).__name__).splitlines()[0]
                self._failed = redacted_text(first)

    def _begin(self) -> None:
        if self._uri.startswith("file:"):
            # MLflow has its file store in maintenance; whoever names a folder wants it.
            os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")
        # Its default waits minutes for a server that is not there.
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "2")
        from mlflow import MlflowClient

        self._client = MlflowClient(tracking_uri=self._uri)
        found = self._client.get_experiment_by_name(self._experiment)
        self._experiment_id = (
            found.experiment_id if found else self._client.create_experiment(self._experiment)
        )
        run = self._client.create_run(self._experiment_id, run_name=self._name)
        self._run_id = run.info.run_id

    def _log(self, record: TrialRecord) -> None:
        simulated = str(record.simulated).lower()
        tags = {
            "mlflow.parentRunId": self._run_id,
            "servetune.simulated": simulated,
            "servetune.key": record.key,
            "servetune.status": record.status,
        }
        if record.failure is not None:
            tags["servetune.failure"] = f"{record.failure.kind}: {record.failure.reason}"
        run = self._client.create_run(
            self._experiment_id, run_name=f"trial {record.key[:12]}", tags=_texts(tags)
        )
        run_id = run.info.run_id
        self._log_batch(run_id, metrics_of(record), params_of(record))
        ok = record.status == "ok"
        self._client.set_terminated(run_id, status="FINISHED" if ok else "FAILED")
        self._client.set_tag(self._run_id, "servetune.simulated", simulated)

    def _log_batch(
        self, run_id: str, metrics: Mapping[str, float], params: Mapping[str, str]
    ) -> None:
        from mlflow.entities import Metric, Param

        now_ms = int(time.time() * 1000)
        values = [Metric(name, value, now_ms, 0) for name, value in metrics.items()]
        texts = [Param(name, value) for name, value in params.items()]
        most = max(len(values), len(texts), 1)
        for first in range(0, most, _MOST_ENTRIES):
            last = first + _MOST_ENTRIES
            self._client.log_batch(run_id, metrics=values[first:last], params=texts[first:last])

    def _end(self, artifacts: Artifacts | None, *, interrupted: bool) -> None:
        for path in (
            (artifacts.journal, artifacts.summary, artifacts.dashboard) if artifacts else ()
        ):
            if path.is_file():
                self._client.log_artifact(self._run_id, str(path))
        status = "KILLED" if interrupted else "FINISHED"
        self._client.set_terminated(self._run_id, status=status)


def params_of(record: TrialRecord) -> dict[str, str]:
    """Settings of a trial by their names in MLflow."""
    config, about = record.config, record.metadata
    values = {
        "model": about.model,
        "engine": about.engine,
        "gpu": about.gpu_type,
        **{f"server.{name}": value for name, value in config.server_args.items()},
        **{f"client.{name}": value for name, value in config.client_args.items()},
    }
    return _texts({name: value for name, value in values.items() if value is not None})


def metrics_of(record: TrialRecord) -> dict[str, float]:
    """Figures of a trial by their names in MLflow."""
    return {
        _NO_NAME.sub("_", name): float(value)
        for name, value in record.results.items()
        if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    }


def _texts(values: Mapping[str, object]) -> dict[str, str]:
    return {
        _NO_NAME.sub("_", name)[:250]: redacted_text(str(value))[:_MOST_VALUE]
        for name, value in values.items()
    }


def _tracking_uri(uri: str | Path) -> str:
    """Address of a server as it is; a folder as MLflow names its file store."""
    text = str(uri)
    if "://" in text or text.startswith("databricks"):
        return text
    return Path(text).absolute().as_uri()
