#!/bin/sh
# install.sh VENV: SGLang 0.5.23 for a CPU, in a virtual environment of its own (2.6 GB, one to two minutes).
# Does nothing when VENV holds it already. PYTHON names the interpreter (default python3).
set -eu

[ $# -eq 1 ] || { echo "usage: $0 VENV" >&2; exit 2; }
here=$(cd "$(dirname "$0")" && pwd)
python=$1/bin/python
version=0.5.23

installed() {
    "$python" -c 'import importlib.metadata as m; print(m.version("sglang"))' 2>/dev/null || true
}

add() {
    "$python" -m pip install --quiet --disable-pip-version-check "$@"
}

if [ "$(installed)" != "$version" ]; then
    [ -x "$python" ] || "${PYTHON:-python3}" -m venv "$1"
    # torch first: what comes after must find it, and not bring another build of it.
    add torch==2.13.0
    add --no-deps "sglang==$version" torchvision==0.28.0
    add --requirement "$here/requirements.txt"
fi
echo "sglang $(installed) in $1"
