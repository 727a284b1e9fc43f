"""A model gets better: the tiny examples as a user would run them, the supervised warm start and then RL from it."""

from pathlib import Path

import pytest

EXAMPLES = Path(__file__).resolve().parents[3] / "examples"
pytestmark = pytest.mark.slow


def sampled(stack, job):
    rounds = [e for e in stack.client.metrics(job)["evaluations"] if e["mode"] == "sampled"]
    return sorted(rounds, key=lambda e: e["version_step"])


@pytest.mark.timeout(600)
def test_rl_from_a_supervised_warm_start_raises_the_held_out_solve_rate(own_stack):
    own_stack.up()
    warm = own_stack.client.submit_file(EXAMPLES / "tiny_sft.yaml")["id"]
    own_stack.finish(warm, 300)
    rates = [e["solve_rate"] for e in sampled(own_stack, warm)]
    assert rates[-1] >= 0.3 and max(rates[:-1]) < 0.3
    assert sampled(own_stack, warm)[-1]["version_step"] < 300

    job = own_stack.client.submit_file(EXAMPLES / "tiny.yaml")["id"]
    audit = own_stack.finish(job, 300)
    assert max(int(age) for age in audit["age_histogram"]) <= 1
    before, after = sampled(own_stack, job)
    gain = after["solve_rate"] - before["solve_rate"]
    error = (before["solve_rate_stderr"] ** 2 + after["solve_rate_stderr"] ** 2) ** 0.5
    assert gain > 2 * error, (before["solve_rate"], after["solve_rate"], error)
