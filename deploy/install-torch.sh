#!/bin/sh
# install-torch.sh PYTHON TORCH: torch's CPU build where there is no NVIDIA GPU and one can be had; else the default build.
set -eu
python=$1 torch=$2
pip() { "$python" -m pip --disable-pip-version-check "$@"; }

"$python" -c 'import torch' 2>/dev/null && exit 0
if command -v nvidia-smi >/dev/null 2>&1 && nvidia-smi >/dev/null 2>&1; then
    pip install --quiet "$torch"
    exit 0
fi
# A "+cpu" build that pip already sees (a local wheel folder or mirror) comes first, then PyTorch's index.
pip install --quiet "$torch+cpu" 2>/dev/null ||
    pip install --quiet "$torch" --index-url https://download.pytorch.org/whl/cpu 2>/dev/null || {
    echo "No CPU build of $torch could be had; installing the default build, which is several gigabytes." >&2
    pip install --quiet "$torch"
}
