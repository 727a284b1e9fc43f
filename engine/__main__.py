"""engine: a small language model on the CPU behind SGLang's HTTP API.

consumes  POST /generate, weight updates from a folder on disk
produces  answers: token ids, their log-probabilities, the weights' version of each token
stalls    while paused

Prints `listening on http://HOST:PORT` to stdout when it serves. Ends with its parent, on SIGTERM within 2 s, with exit
code 2 when it cannot start.
"""

from engine.settings import parse

if __name__ == "__main__":
    settings = parse()
    from engine.process import run

    raise SystemExit(run(settings))
