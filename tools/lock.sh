#!/usr/bin/env bash
# Pin every requirement with hashes, without addresses: `make lock` after a change of
# pyproject.toml, `make lock UPGRADE=--upgrade` for newer versions of everything.
set -euo pipefail
cd "$(dirname "$0")/.."
UV="${UV:-.venv/bin/uv}"
say() { echo "$*" >&2; }
compile() {
  "$UV" pip compile --quiet --universal --python-version 3.11 --generate-hashes \
    --no-emit-index-url --no-emit-find-links --no-annotate --no-header ${UPGRADE:-} "$@"
}
say "requirements/base.txt: what the package needs, and what builds it"
compile pyproject.toml requirements/build.in -o requirements/base.txt
say "requirements/dev.txt: what its tests and checks need"
compile --group pyproject.toml:dev -c requirements/base.txt -o requirements/dev.txt
say "requirements/aiconfigurator.txt: the extra for a second opinion"
compile pyproject.toml --extra aiconfigurator -c requirements/base.txt -o requirements/aiconfigurator.txt
say "requirements/otel.txt: the extra that writes requests as spans"
compile pyproject.toml --extra otel -c requirements/base.txt -o requirements/otel.txt
say "requirements/ray.txt: the extra for several machines"
compile pyproject.toml --extra ray -c requirements/base.txt -o requirements/ray.txt
say "requirements/validators.txt: schemas that rendered manifests are held against"
compile --group pyproject.toml:validators -c requirements/dev.txt -o requirements/validators.txt
say "requirements/mutation.txt: mutation testing of the pure rooms"
compile --group pyproject.toml:mutation -c requirements/dev.txt -o requirements/mutation.txt
say "requirements/site.txt: the documentation as a site"
compile --group pyproject.toml:site -c requirements/dev.txt -o requirements/site.txt
