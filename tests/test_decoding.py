"""Types that several threads decode for the first time at once."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

import servetune
from servetune.decoding import ready

#: A type that msgspec has to lay out, members of members included.
FRESH = "\n".join(
    [
        "import msgspec",
        "class Member(msgspec.Struct):",
        "    number: int = 0",
        "    rest: dict[str, object] = {}",
        "class Fresh(msgspec.Struct):",
        *(f"    field_{number}: Member | None | str = None" for number in range(12)),
    ]
)
MANY_THREADS = """
import sys, threading
import msgspec
from servetune.decoding import ready

sys.setswitchinterval(1e-6)

for _ in range(100):
    names = {}
    exec(sys.argv[1], names)
    fresh, gate, made = names["Fresh"], threading.Barrier(8), []

    def decode():
        gate.wait()
        made.append(msgspec.convert({"field_1": {"number": 1}}, ready(fresh)))

    threads = [threading.Thread(target=decode) for _ in range(8)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert [each.field_1.number for each in made] == [1] * 8
"""


def test_threads_may_decode_new_types_at_once():
    """Without `ready` this ends by SIGSEGV in one of the first rounds."""
    command = [sys.executable, "-c", MANY_THREADS, FRESH]
    found = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert (found.returncode, found.stderr) == (0, "")


def test_a_type_that_msgspec_refuses_is_refused_each_time():
    for _ in range(2):
        with pytest.raises(TypeError):
            ready(list[int] | set[int])


def test_structs_of_files_and_requests_are_decoded_when_they_are_ready():
    """In the rooms that threads of agents and of pages enter first."""
    source = Path(servetune.__file__).parent
    unready = []
    for path in sorted(each for room in ROOMS for each in (source / room).glob("*.py")):
        text = path.read_text("utf-8")
        decodes = re.search(r"msgspec\.(convert|json\.decode|\w+\.Decoder)\(", text)
        for node in ast.walk(ast.parse(text)) if decodes else ():
            if isinstance(node, ast.Call):
                kind = _kind_of(node)
                if re.match(r"(\w+\[.*)?[A-Z_]", kind) and kind not in OF_NO_STRUCT:
                    unready.append(f"{path.relative_to(source)}:{node.lineno} {kind}")
    assert unready == []


ROOMS = (
    *("api", "deploy", "deploy/aws", "hardware", "loadgen", "report", "simserver", "store"),
    "workload",
)
#: Types that are no structs, and those of a decoder that is made with its module.
OF_NO_STRUCT = {
    *("AnyEntry", "JsonObject", "dict[str, Any]", "list[msgspec.Raw]"),
    *("Heartbeat | Finished", "_Body", "_ParametersBody", "_SamplingBody"),
    "tuple[Annotated[int, msgspec.Meta(ge=0)], ...]",
}


def _kind_of(call):
    """Type that a call of msgspec decodes, as it is written; empty for other calls."""
    match ast.unparse(call.func):
        case "msgspec.convert" if len(call.args) > 1:
            return ast.unparse(call.args[1])
        case "msgspec.json.Decoder" | "msgspec.msgpack.Decoder" if call.args:
            return ast.unparse(call.args[0])
        case "msgspec.json.decode":
            return next((ast.unparse(one.value) for one in call.keywords if one.arg == "type"), "")
    return ""
