"""engine: a small language model on the CPU behind SGLang's HTTP API.

consumes  POST /generate, weight updates from a folder on disk
produces  answers: token ids, their log-probabilities, the weights' version of each token
stalls    while paused

Prints `listening on http://HOST:PORT` to stdout when it serves. Ends with its parent, on SIGTERM within 2 s, with exit
code 2 when it cannot start.
"""

import os
import sys

from engine.settings import parse

if __name__ == "__main__":
    settings = parse()
    from engine.process import run

    code = run(settings)
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    # The interpreter's own ending waits for a step under way and takes torch apart: seconds for nothing.
    os._exit(code)
