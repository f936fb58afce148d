"""A shell that runs a README's commands of the AWS CLI against the double of AWS.

bash runs them as they are written, with a function `aws` that hands its words to a thread here: it
makes the request that the AWS CLI would make of them, sends it to the double, and gives the answer
back. Files are those of the bundle.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import threading
from pathlib import Path
from typing import Any

import jmespath
from botocore import xform_name
from botocore_check import service
from doubles import FakeAws

from servetune.deploy import Bundle, write

#: The words go into one pipe, a line each; status and answer come from the other.
_AWS = """
aws() { local reply; printf '%s\\n' "$@" > "$PIPES/words"; reply=$(< "$PIPES/answer")
        printf '%s' "${reply#*$'\\n'}"; return "${reply%%$'\\n'*}"; }
sleep() { :; }
set -eu
"""


def shell_blocks(bundle: Bundle, heading: str) -> list[str]:
    """Shell of one section of a bundle's README."""
    text = bundle.text("README.md")
    section = re.search(rf"^## {heading}\n(.*?)(?=^## |\Z)", text, re.DOTALL | re.MULTILINE)
    assert section, heading
    return re.findall(r"```sh\n(.*?)```", section[1], re.DOTALL)


class Shell:
    """bash in a bundle's folder, with the double behind its `aws`.

    Attributes:
        sent: Services, operations and requests, in their order.
    """

    def __init__(self, bundle: Bundle, double: FakeAws, folder: Path) -> None:
        self.double, self.folder = double, folder
        self.sent: list[tuple[str, str, dict[str, Any]]] = []
        write(bundle, folder)
        self._pipes = folder.parent
        for name in ("words", "answer"):
            os.mkfifo(self._pipes / name)

    def run(self, script: str, **variables: str) -> str:
        """Run lines; the output of what went wrong, empty for nothing."""
        thread = threading.Thread(target=self._answer, daemon=True)
        thread.start()
        done = subprocess.run(
            ["bash", "-c", f'{_AWS}\n{script}\nprintf end > "$PIPES/words"'],
            cwd=self.folder, env=os.environ | {"PIPES": str(self._pipes)} | variables,
            capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip
        if done.returncode:  # the end was not reached
            (self._pipes / "words").write_text("end")
        thread.join(timeout=10)
        return done.stderr if done.returncode else ""

    def _answer(self) -> None:
        while (words := (self._pipes / "words").read_text()) != "end":
            status, text = self._call(words.splitlines())
            (self._pipes / "answer").write_text(f"{status}\n{text}")

    def _call(self, words: list[str]) -> tuple[int, str]:
        region, _, name, command, *rest = words[0], *words[1:]
        assert region == "--region"
        if command == "wait":
            return self._wait(rest)
        options = _options(rest)
        query = options.pop("--query", ["@"])[0]
        options.pop("--output", None)
        operation, request = self._request(name, command, options)
        self.sent.append((name, operation, request))
        status, answer = self.double.json(name, operation, request)
        if status != 200:
            return 1, json.dumps(answer)
        found = jmespath.search(query, answer)
        return 0, found if isinstance(found, str) else json.dumps(found, default=str)

    def _wait(self, rest: list[str]) -> tuple[int, str]:
        """The AWS CLI's waiters of endpoints."""
        name = rest[2]
        for _ in range(60):
            _, answer = self.double.json("sagemaker", "DescribeEndpoint", {"EndpointName": name})
            if answer.get("EndpointStatus") not in ("Creating", "Deleting"):
                gone = "EndpointStatus" not in answer
                return int(gone != (rest[0] == "endpoint-deleted")), ""
        return 255, ""

    def _request(
        self, name: str, command: str, options: dict[str, list[str]]
    ) -> tuple[str, dict[str, Any]]:
        model = service(name)
        operation = {xform_name(each, "-"): each for each in model.operation_names}[command]
        members = model.operation_model(operation).input_shape.members
        (file,) = options.pop("--cli-input-json", [""])
        request = {}
        if file:
            request = json.loads((self.folder / file.removeprefix("file://")).read_text())
        for member, shape in members.items():
            given = options.pop(f"--{xform_name(member, '-')}", None)
            if given is not None:
                request[member] = given if shape.type_name == "list" else given[0]
        assert not options, f"{command} has no {list(options)}"
        return operation, request


def _options(words: list[str]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for word in words:
        if word.startswith("--"):
            found[word] = values = []
        else:
            values.append(word)
    return found
