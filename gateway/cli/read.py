"""Commands that read what a job made: samples, sample, audit, metrics, export."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from typing import Any

from gateway.cli.audit_text import audit_text
from gateway.cli.lines import evaluation_line
from gateway.cli.outcome import FAILED, OK
from gateway.cli.text import clipped, number, percent, printable, size, table, when
from gateway.cli.watch import the_job
from gateway.client import Client

QUESTION_WIDTH, ANSWER_WIDTH = 200, 400


def samples(args: argparse.Namespace) -> int:
    with Client(args.url) as client:
        page = client.samples(
            the_job(client, args.job)["id"], sample_class=args.sample_class, step=args.step,
            limit=min(200, args.limit), before=args.before,
        )  # fmt: skip
    if args.json:
        print(json.dumps(page))
        return OK
    for sample in page["samples"]:
        print(_sample_text(sample, full=args.full) + "\n")
    if not page["samples"]:
        print("no stored samples (trained ones are deleted once two checkpoints cover them; `retain: true` keeps them)")
    if page["next_before"] is not None:
        print(f"{page['stored'] - len(page['samples'])} more: --before {page['next_before']}")
    return OK


def _sample_text(sample: dict[str, Any], *, full: bool) -> str:
    if "unreadable" in sample:
        return f"{sample['sample']}  cannot be read: {sample['unreadable']}"
    cut: Callable[[str, int], str] = (lambda text, _: printable(text)) if full else clipped
    components = ", ".join(f"{name} {number(value)}" for name, value in (sample["components"] or {}).items())
    versions = ", ".join(f"{version} ({tokens})" for version, tokens in sample["versions"].items())
    reward = number(sample["reward"]) if sample["valid"] else f"not graded: {sample['error']}"
    step = f"step {sample['step']}" if sample["step"] is not None else "not in a batch"
    if sample["sample_class"] != "train":
        step = sample["sample_class"]
    question = sample["row"].get("question", sample["row"])
    return "\n".join(
        (
            f"{sample['sample']}  reward {reward}  ({components})  {step}",
            f"  {sample['tokens']} tokens by version {versions or '-'}, ended by {sample['finish_reason'] or '-'}",
            f"  asked    {cut(question if isinstance(question, str) else json.dumps(question), QUESTION_WIDTH)}",
            f"  answered {cut(sample['text'], ANSWER_WIDTH)}",
        )
    )


def sample(args: argparse.Namespace) -> int:
    with Client(args.url) as client:
        life = client.sample(args.id)
    if args.json:
        print(json.dumps(life))
        return OK
    print(f"{life['sample']}: {life['place']}")
    for moment in life["moments"]:
        detail = ", ".join(f"{k} {v}" for k, v in moment.items() if k not in ("at", "what") and v not in (None, ""))
        at = f"{time.strftime('%H:%M:%S', time.localtime(moment['at']))}.{int(moment['at'] % 1 * 1000):03d}"
        print(f"  {at}  {moment['what']:<18} {detail}")
    if life["body"] is not None and "components" in life["body"]:
        print(_sample_text(life["body"], full=True))
    return OK


def audit(args: argparse.Namespace) -> int:
    with Client(args.url) as client:
        found = client.audit(the_job(client, args.job)["id"])
    print(json.dumps(found) if args.json else audit_text(found))
    return OK if found["balanced"] else FAILED


def metrics(args: argparse.Namespace) -> int:
    with Client(args.url) as client:
        found = client.metrics(the_job(client, args.job)["id"])
    if args.json:
        print(json.dumps(found))
        return OK
    rows = [
        (
            row["step"], row.get("version", "-"), number(row.get("reward_mean")), percent(row.get("exact_solve_rate")),
            number(row.get("loss"), 4), number(row.get("kl"), 4), number(row.get("gradient_norm")),
            number(row.get("tokens"), 0), number(row.get("tokens_per_second"), 0), when(row["at"])[11:],
        )
        for row in found["steps"]
    ]  # fmt: skip
    header = ("STEP", "VERSION", "REWARD", "SOLVED", "LOSS", "KL", "GRADIENT", "TOKENS", "TOKENS/S", "AT")
    print(table(rows, header) if rows else "no steps yet")
    for body in found["evaluations"]:
        print(evaluation_line(body))
    return OK


def export(args: argparse.Namespace) -> int:
    with Client(args.url) as client:
        found = client.export(args.job, args.directory, checkpoint=args.checkpoint)
    if args.json:
        print(json.dumps(found))
    else:
        total = size(sum(file["size"] for file in found["files"]))
        print(f"{found['directory']}: the model of {found['job']} after step {found['step']} ({total})")
    return OK
