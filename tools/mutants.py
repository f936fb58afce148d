"""Mutation testing of the pure rooms: what a change of the code must turn red, and does not.

    make mutants                                  a sample of each room, with a fixed seed
    python tools/mutants.py metrics --sample 0    every mutant of one room
    python tools/mutants.py --survivors           also the changes that no test noticed

mutmut makes the mutants and chooses for each the tests that reach its function. A mutant is
killed where such a test fails. Survivors are of two kinds: a promise that no test holds, and a
change that changes nothing (`strict=` of equal lengths, a dtype, a copy). docs/design/0013 has
the figures. Works in a copy, since mutmut writes beside the source.
"""

from __future__ import annotations

import argparse
import random
import re
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / ".cache" / "mutants"
#: Source files by room, and the tests that hold them; "plan" is a plan and what engines make of it.
ROOMS: dict[str, tuple[list[str], list[str]]] = {
    "search": (["search/*"], ["tests/search"]),
    "metrics": (["metrics/*"], ["tests/metrics"]),
    "store": (["store/*"], ["tests/store"]),
    "plan": (
        [
            "plan/*",
            *(f"engines/{one}.py" for one in ("memory", "parallel", "defaults", "refusals")),
        ],
        ["tests/engines"],
    ),
    "workload": (["workload/*"], ["tests/workload"]),
}
COPIED = ("src", "tests", "docs", "examples", "benchmarks", "tools")
FILES = ("pyproject.toml", "README.md", "CHANGELOG.md", "Makefile")
SEED = 13
_JUDGED = ("killed", "survived", "no tests")


def prepare(room: str) -> Path:
    """A copy of the checkout whose configuration names one room."""
    folder = FOLDER / room
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for name in COPIED:
        shutil.copytree(
            ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__", ".*")
        )
    for name in FILES:
        shutil.copy(ROOT / name, folder / name)
    patterns, tests = ROOMS[room]
    mutated = [f"src/servetune/{pattern}" for pattern in patterns]
    for pattern in mutated:
        for source in (each for each in folder.glob(pattern) if each.suffix == ".py"):
            # A cached answer hides a function from the test that is asked about it.
            plain = re.sub(r"^ *@lru_cache\(.*\)\n", "", source.read_text("utf-8"), flags=re.M)
            source.write_text(plain, "utf-8")
    missing = [test for test in tests if not (ROOT / test).is_dir()]
    if missing:
        sys.exit(f"{room}: no folder {', '.join(missing)}: mend ROOMS in tools/mutants.py")
    lines = [
        "",
        "[tool.mutmut]",
        'source_paths = ["src"]',
        f"only_mutate = {mutated!r}",
        f"pytest_add_cli_args_test_selection = {tests!r}",
        f"also_copy = {[name for name in (*COPIED, *FILES) if name not in ('src', 'tests')]!r}",
        "",
    ]
    with (folder / "pyproject.toml").open("a", encoding="utf-8") as file:
        file.write("\n".join(lines))
    return folder


def mutmut(folder: Path, *words: str, quiet: bool = False) -> str:
    made = subprocess.run(
        [sys.executable, "-m", "mutmut", *words],
        cwd=folder,
        check=False,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    if made.returncode and not quiet:
        sys.exit(f"mutmut {words[0]} ended with {made.returncode}:\n{made.stdout[-2000:]}")
    return made.stdout


def statuses(folder: Path) -> dict[str, str]:
    """Status of each mutant by its name."""
    lines = mutmut(folder, "results", "--all", "true").splitlines()
    pairs = (line.strip().rpartition(": ") for line in lines if "__mutmut_" in line)
    return {name: status for name, _, status in pairs}


def test_room(room: str, sample: int, children: int) -> tuple[Path, dict[str, str]]:
    """Run a room's mutants, or a sample of them; those that ran with their status."""
    folder = prepare(room)
    if not sample:
        mutmut(folder, "run", "--max-children", str(children))
        return folder, statuses(folder)
    # No mutant is of this name: mutants are made, tests are timed, and nothing else happens.
    mutmut(folder, "run", "--max-children", str(children), "none.at.all", quiet=True)
    names = sorted(statuses(folder))
    chosen = random.Random(SEED).sample(names, min(sample, len(names)))
    mutmut(folder, "run", "--max-children", str(children), *chosen)
    every = statuses(folder)
    return folder, {name: every[name] for name in chosen}


def change_of(folder: Path, name: str) -> str:
    """Lines that a mutant takes away and puts in."""
    lines = mutmut(folder, "show", name).splitlines()
    return "\n".join(f"    {line}" for line in lines if re.match(r"[-+](?![-+])", line))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("rooms", nargs="*", choices=[*ROOMS, []], help="rooms [default: all]")
    parser.add_argument("--sample", type=int, default=150, help="mutants a room; 0 for all")
    parser.add_argument("--children", type=int, default=2, help="processes at once")
    parser.add_argument("--survivors", action="store_true", help="print the surviving changes")
    options = parser.parse_args()
    for room in options.rooms or ROOMS:
        folder, found = test_room(room, options.sample, options.children)
        counts = Counter(found.values())
        alive = [name for name, status in found.items() if status in {"survived", "no tests"}]
        judged = counts["killed"] + len(alive)
        # A time-out or a crash of the tests is no verdict, nor is a mutant that was not run.
        others = [f"{count} {status}" for status, count in counts.items() if status not in _JUDGED]
        print(
            f"{room}: {judged} mutants judged, {counts['killed']} killed"
            f" ({counts['killed'] / max(1, judged):.1%});"
            f" {counts['survived']} survived, {counts['no tests']} reached by no test;"
            f" not judged: {', '.join(others) or 'none'}",
            flush=True,
        )
        for name in alive if options.survivors else ():
            print(f"  {name}\n{change_of(folder, name)}", flush=True)


if __name__ == "__main__":
    main()
