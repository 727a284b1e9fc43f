"""`python -m benchmarks [NAME ...]`: run the benchmarks, print their tables, keep them in `benchmarks/results/`."""

from __future__ import annotations

import argparse
import importlib
import sys

TABLES = {
    "command_line": "seconds of `slipstream --help` and `submit`",
    "memory": "memory of the stack before a model is loaded",
    "hops": "samples/s through reward, buffer and trainer, against bare nats-py",
    "engine": "the built-in engine, against transformers and SGLang",
    "grpo_step": "a whole GRPO step, against TRL",
}


def main() -> int:
    listed = "\n".join(f"  {name:<14}{what}" for name, what in TABLES.items())
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks", epilog=f"tables:\n{listed}", formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help="which tables (all when empty)")
    names = parser.parse_args().names or list(TABLES)
    unknown = [name for name in names if name not in TABLES]
    if unknown:
        print(f"there is no benchmark {unknown[0]!r}; there are {', '.join(TABLES)}", file=sys.stderr)
        return 2
    for name in names:
        importlib.import_module(f"benchmarks.{name}").main()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
