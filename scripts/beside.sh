#!/usr/bin/env bash
# Puts the packages of requirements/NAME.txt into the folder .venv-NAME, for each NAME among the arguments: packages that
# some tests put beside .venv's on PYTHONPATH. Does nothing where a folder is up to date.
set -euo pipefail
cd "$(dirname "$0")/.."
for name in "$@"; do
    key=$(sha256sum "requirements/$name.txt" | cut -d ' ' -f 1)
    [ "$(cat ".venv-$name/stamp" 2>/dev/null)" != "$key" ] || continue
    rm -rf ".venv-$name"
    .venv/bin/python -m pip install -qq --disable-pip-version-check --no-deps --target ".venv-$name" \
        -r "requirements/$name.txt"
    echo "$key" >".venv-$name/stamp"
done
