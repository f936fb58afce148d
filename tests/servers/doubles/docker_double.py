"""A stand-in for Docker where no daemon runs: `docker_double.py daemon SOCKET` and a client.

The daemon starts what it is told, so that a container is nobody's child here, as with Docker: a
client that is killed leaves it running. The client knows the options that servetune uses and
`--detach`, as Docker 28 documents them, and refuses others with Docker's words.
"""

import argparse
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time


class Parser(argparse.ArgumentParser):
    def error(self, message):
        sys.stderr.write(f"unknown flag: {message}\n")
        sys.exit(125)


def parser():
    run = Parser(prog="docker run", add_help=False, allow_abbrev=False)
    for name in ("rm", "init"):
        run.add_argument(f"--{name}", action="store_true", required=True)
    for name in ("name", "network", "entrypoint"):
        run.add_argument(f"--{name}", required=True)
    for name in ("shm-size", "gpus", "cpuset-cpus", "cpuset-mems"):
        run.add_argument(f"--{name}")
    for name in ("volume", "env"):
        run.add_argument(f"--{name}", action="append", default=[])
    run.add_argument("image")
    run.add_argument("words", nargs=argparse.REMAINDER)
    return run


def ask(order, then=None):
    with socket.socket(socket.AF_UNIX) as line:
        line.connect(os.environ["DOCKER_DOUBLE"])
        line.sendall(json.dumps(order).encode() + b"\n")
        with line.makefile() as answers:
            for answer in answers:
                if then is not None:
                    then(json.loads(answer))


def run(words):
    said = parser().parse_args(words)
    environment = {}
    for one in said.env:
        name, given, value = one.partition("=")
        if given or name in os.environ:
            environment[name] = value if given else os.environ[name]
    order = {
        "run": said.name,
        "words": [said.entrypoint, *said.words],
        "env": environment,
        "image": said.image,
    }
    for number in (signal.SIGTERM, signal.SIGINT):  # the client hands them on
        signal.signal(number, lambda *_: threading.Thread(target=ask, args=({"term": said.name},)))
    code = 125

    def take(answer):
        nonlocal code
        if "out" in answer:
            sys.stdout.write(answer["out"])
            sys.stdout.flush()
        code = answer.get("code", code)

    ask(order, take)
    return code


class Daemon:
    def __init__(self):
        self.containers = {}
        self.orders = {}

    def serve(self, path):
        with socket.socket(socket.AF_UNIX) as door:
            door.bind(path)
            door.listen()
            sys.stdout.write("listening\n")
            sys.stdout.flush()
            while True:
                line, _ = door.accept()
                threading.Thread(target=self.answer, args=(line,), daemon=True).start()

    def answer(self, line):
        with line, line.makefile() as orders:
            order = json.loads(orders.readline())
            if "run" in order:
                self.run(order, line)
            elif "ps" in order:
                live = [name for name, one in self.containers.items() if one.poll() is None]
                self.tell(line, {"out": "".join(f"{name}\n" for name in live)})
            elif "inspect" in order:
                if (asked := self.orders.get(order["inspect"])) is None:
                    self.tell(line, {"code": 1})
                    return
                parts = {
                    "{{.Name}}": f"/{asked['run']}",
                    "{{.Config.Image}}": asked["image"],
                    "{{.State.Pid}}": str(self.containers[asked["run"]].pid),
                    "{{json .Config.Env}}": json.dumps(
                        [f"{n}={v}" for n, v in asked["env"].items()]
                    ),
                }
                said = order["format"]
                for word, value in parts.items():
                    said = said.replace(word, value)
                self.tell(line, {"out": f"{said}\n"})
            elif (container := self.containers.get(order.get("stop") or order.get("term"))) is None:
                return
            elif "term" in order:
                os.killpg(container.pid, signal.SIGTERM)
            else:
                os.killpg(container.pid, signal.SIGTERM)
                deadline_s = time.monotonic() + order["within_s"]
                while container.poll() is None and time.monotonic() < deadline_s:
                    time.sleep(0.02)
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(container.pid, signal.SIGKILL)
                container.wait()

    @staticmethod
    def tell(line, answer):
        with contextlib.suppress(OSError):
            line.sendall(json.dumps(answer).encode() + b"\n")

    def run(self, order, line):
        self.orders[order["run"]] = order
        container = self.containers[order["run"]] = subprocess.Popen(
            order["words"],
            env={**os.environ, "IMAGE": order["image"], **order["env"]},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        for out in container.stdout:
            self.tell(line, {"out": out})
        self.tell(line, {"code": container.wait()})


def main():
    verb, *words = sys.argv[1:]
    if verb == "daemon":
        Daemon().serve(*words)
    elif verb == "run":
        sys.exit(run(words))
    elif verb == "stop":
        stop = Parser(prog="docker stop", add_help=False, allow_abbrev=False)
        stop.add_argument("--time", type=float, default=10.0)
        stop.add_argument("name")
        said = stop.parse_args(words)
        ask({"stop": said.name, "within_s": said.time})
    elif verb == "rm":
        remove = Parser(prog="docker rm", add_help=False, allow_abbrev=False)
        remove.add_argument("--force", action="store_true", required=True)
        remove.add_argument("name")
        ask({"stop": remove.parse_args(words).name, "within_s": 0})
    elif verb == "version":
        sys.stdout.write("28.2.2\n")
    elif verb in ("ps", "inspect"):
        look = Parser(prog=f"docker {verb}", add_help=False, allow_abbrev=False)
        look.add_argument("--filter")
        look.add_argument("--format", required=True)
        look.add_argument("names", nargs="*")
        said = look.parse_args(words)
        orders = [{"inspect": name, "format": said.format} for name in said.names]
        for order in orders if verb == "inspect" else [{"ps": True}]:
            ask(order, lambda answer: sys.stdout.write(answer.get("out", "")))
    else:
        sys.stderr.write(f"docker: '{verb}' is not a docker command.\n")
        sys.exit(1)


main()
