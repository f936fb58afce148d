#!/usr/bin/env bash
# Install a lock file's packages, each checked against its hash.
#
#   tools/install_locked.sh VENV_DIR LOCK_FILE
#
# By uv, which takes a third of pip's time; by pip where uv cannot do it. The lock is the whole
# set: nothing that it leaves out is installed.
set -euo pipefail

[[ $# -eq 2 ]] || { echo "usage: install_locked.sh VENV_DIR LOCK_FILE" >&2; exit 2; }
python=$1/bin/python
lock_file=$2
tools=$1/.tools # beside the packages: a lock need not have uv
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)

# pip's own configuration, wherever it is kept. Both uses below go through the
# environment of one command, so that no address reaches a file or a process list.
pip_setting() {
  local variable="PIP_$1"
  variable=${variable//-/_}
  variable=${variable^^}
  if [[ -n ${!variable:-} ]]; then
    printf '%s' "${!variable}"
  else
    "$python" -m pip config get "global.$1" 2>/dev/null || true
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

with_uv() {
  if [[ ! -x $tools/bin/uv ]]; then
    "$python" -m pip install -qq --require-hashes --no-deps --target "$tools" \
      -r <(sed -n '/^uv==/,/[^\\]$/p' "$here/../requirements/dev.txt") || return 1
  fi
  # Compiled to bytecode at once, or the first start of each program would do it.
  with_pips_sources "$tools/bin/uv" --no-config pip install --python "$python" \
    --require-hashes --no-deps --compile-bytecode --quiet -r "$lock_file"
}

with_pip() {
  echo "note: uv could not do it, trying pip (some minutes)" >&2
  "$python" -m pip install -qq --require-hashes --no-deps -r "$lock_file"
}

with_uv || with_pip
