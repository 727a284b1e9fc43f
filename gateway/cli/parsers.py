"""Every job command's arguments and help. No work is done here, so that `--help` is instant."""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Callable
from typing import Any

JOB_HELP = "a job's id, the only beginning of one, or its name (then the newest of that name)"
NEWEST_HELP = f"{JOB_HELP}; none: the newest job"


def lazily(module: str, function: str) -> Callable[[argparse.Namespace], int]:
    """The command `function` of `gateway.cli.<module>`, imported when it is called."""

    def command(args: argparse.Namespace) -> int:
        code: int = getattr(importlib.import_module(f"gateway.cli.{module}"), function)(args)
        return code

    return command


def add_parsers(subparsers: Any) -> None:
    """Adds the job commands to the `slipstream` command line."""
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument("--url", help="the gateway (default: SLIPSTREAM_URL, else http://127.0.0.1:8400)")
    common.add_argument("--json", action="store_true", help="as JSON, for scripts")

    def add(
        name: str,
        help: str,
        description: str,
        examples: str,
        run: Callable[[argparse.Namespace], int],
        json: bool = True,
    ) -> argparse.ArgumentParser:
        parser: argparse.ArgumentParser = subparsers.add_parser(
            name, help=help, description=description, epilog=f"examples:\n{examples}",
            formatter_class=argparse.RawDescriptionHelpFormatter, parents=[common],
        )  # fmt: skip
        parser.set_defaults(run=run)
        return parser

    submit = add(
        "submit", "check a job file and start the job",
        "Checks the file against the schema and the world (do model, data and reward load?) and starts the job.\n"
        "Relative paths in the file start from its folder.",
        "  slipstream submit examples/chain_sum.yaml --wait\n"
        "  slipstream submit job.yaml --json | jq -r .id",
        lazily("change", "submit"),
    )  # fmt: skip
    submit.add_argument("file", help="the job file; - reads it from standard input")
    submit.add_argument("--wait", action="store_true", help="show it until it ends; status 0 only if it completed")
    submit.add_argument("--key", help="an idempotency key: the same key and file again give the same job")

    validate = add(
        "validate", "check a job file without running it",
        "All checks of `submit`, without running: says what was found, or every problem with its place.",
        "  slipstream validate job.yaml\n  slipstream validate job.yaml --json | jq .facts",
        lazily("change", "validate"),
    )  # fmt: skip
    validate.add_argument("file", help="the job file; - reads it from standard input")

    jobs = add(
        "jobs", "list jobs", "Lists jobs, newest first.",
        "  slipstream jobs\n  slipstream jobs --state running --json",
        lazily("show", "jobs"),
    )  # fmt: skip
    jobs.add_argument("--state", help="only jobs in this state (running, paused, completed, failed, ...)")
    jobs.add_argument("--name", help="only jobs of this name")
    jobs.add_argument("--limit", type=positive, default=50, help="at most so many (default 50)")

    show = add(
        "show", "show one job: state, progress, evaluations",
        "Shows a job's state, what it does now, its evaluations, and what its checks found.",
        "  slipstream show\n  slipstream show chain-sum --json | jq .job.spec",
        lazily("show", "show"),
    )  # fmt: skip
    show.add_argument("job", nargs="?", help=NEWEST_HELP)

    watch = add(
        "watch", "follow a job live until it ends",
        "Follows a job live until it ends: step, version, reward and its trend, solve rate, staleness, tokens/s,\n"
        "where the samples are, time left. Ctrl-C ends the watching, not the job. Piped: one line an event;\n"
        "--json: one event a line.",
        "  slipstream watch\n  slipstream watch chain-sum | tee run.log",
        lazily("watch", "watch"),
    )  # fmt: skip
    watch.add_argument("job", nargs="?", help=NEWEST_HELP)
    watch.add_argument("--plain", action="store_true", help="lines instead of a live display")

    for name, help, description in (
        ("pause", "pause a job", "No new samples are started; what is under way is finished. `resume` goes on."),
        ("resume", "go on with a paused or failed job", "Goes on where the job was: nothing is lost or done twice."),
        ("cancel", "end a job early", "Drops what is in flight; the ledger and the checkpoints stay."),
    ):
        parser = add(name, help, description, f"  slipstream {name} chain-sum", lazily("change", name))
        parser.add_argument("job", help=JOB_HELP)

    delete = add(
        "delete", "delete a job and all it made", "Deletes a job with its streams, ledger, checkpoints and events.",
        "  slipstream delete chain-sum-1a2b3c --yes",
        lazily("change", "delete"),
    )  # fmt: skip
    delete.add_argument("job", help=JOB_HELP)
    delete.add_argument("--yes", action="store_true", help="do not ask")
    delete.add_argument("--no-wait", action="store_true", help="return when it is marked, not when all is gone")
    _add_readers(add)


def _add_readers(add: Callable[..., argparse.ArgumentParser]) -> None:
    samples = add(
        "samples", "read a job's answers with their scores",
        "Shows stored trajectories, newest first: question, answer, reward and its components, versions, step.\n"
        "Trained ones are deleted once two checkpoints cover them, unless the job file says `retain: true`.",
        "  slipstream samples chain-sum --limit 5\n  slipstream samples chain-sum --class eval\n"
        "  slipstream samples chain-sum --step 3 --json | jq '.samples[].reward'",
        lazily("read", "samples"),
    )  # fmt: skip
    samples.add_argument("job", nargs="?", help=NEWEST_HELP)
    samples.add_argument("--class", dest="sample_class", choices=("train", "eval"), help="only this class")
    samples.add_argument("--step", type=positive, help="only the batch of this step")
    samples.add_argument("--limit", type=positive, default=10, help="at most so many (default 10, at most 200)")
    samples.add_argument("--before", type=positive, help="older than this sequence (the last line says which)")
    samples.add_argument("--full", action="store_true", help="whole texts")

    sample = add(
        "sample", "one sample's whole life",
        "Everything that happened to one sample: issued, attempts, stored, scored, batched, trained or dropped.",
        "  slipstream sample chain-sum-1a2b3c/12/0\n  slipstream sample chain-sum-1a2b3c/eval-1/12/0 --json",
        lazily("read", "sample"),
    )  # fmt: skip
    sample.add_argument("id", help="<job>/<group>/<index>, as `samples` shows it")

    audit = add(
        "audit", "prove that no sample is lost or doubled",
        "Computes the balance from the streams alone: issued = trained + dropped + dead + in flight, each sample in\n"
        "one place, each trained in one step, none over age, checkpoints made from the recorded batches.\n"
        "Status 1 when it does not hold.",
        "  slipstream audit chain-sum\n  slipstream audit chain-sum --json | jq .problems",
        lazily("read", "audit"),
    )  # fmt: skip
    audit.add_argument("job", nargs="?", help=NEWEST_HELP)

    metrics = add(
        "metrics", "a table of the job's steps", "One row a step, then the evaluations.",
        "  slipstream metrics chain-sum\n  slipstream metrics chain-sum --json | jq '.steps[].reward_mean'",
        lazily("read", "metrics"),
    )  # fmt: skip
    metrics.add_argument("job", nargs="?", help=NEWEST_HELP)

    export = add(
        "export", "download the trained model",
        "Downloads the newest durable model as a folder that `transformers` loads. Works while the job runs.",
        "  slipstream export chain-sum ./my-model\n"
        "  python -c 'import transformers as t; t.AutoModelForCausalLM.from_pretrained(\"./my-model\")'",
        lazily("read", "export"),
    )  # fmt: skip
    export.add_argument("job", help=JOB_HELP)
    export.add_argument("directory", help="a new or empty folder")
    export.add_argument("--checkpoint", help="step.epoch of a kept checkpoint instead of the newest")


def positive(text: str) -> int:
    if not (text.isascii() and text.isdigit() and int(text) > 0):
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number over 0")
    return int(text)
