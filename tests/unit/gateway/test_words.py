"""What people read: trends, durations, tables, lines of progress, the demo's end."""

import io
import math

from gateway.cli.audit_text import audit_text
from gateway.cli.demo import improvement
from gateway.cli.lines import line_for
from gateway.cli.progress import Progress
from gateway.cli.text import clipped, duration, number, percent, size, sparkline, table, trend, with_error
from gateway.sse import JobEvent

JOB = {"id": "sums-1a2b3c", "name": "sums", "state": "running", "reason": "", "steps": 8, "created_at": 0.0}


def test_numbers_and_durations_are_short():
    assert [duration(s) for s in (0, 59.6, 80, 7500, None, math.nan)] == ["0s", "1m00s", "1m20s", "2h05m", "-", "-"]
    assert (number(0.12345), number(None), number(True), number(math.inf)) == ("0.123", "-", "-", "-")
    assert (percent(0.281), percent(None)) == ("28.1%", "-")
    assert (with_error(0.48, 0.031), with_error(0.48, None)) == ("0.480 ± 0.031", "0.480")
    assert (size(10), size(5_200_000), size(3.1e9)) == ("10 B", "5.2 MB", "3.1 GB")
    assert clipped("a  long\nanswer", 9) == "a long..."
    assert clipped("\x1b[2Jgone", 40) == "\\x1b[2Jgone"


def test_a_trend_is_an_arrow_only_beyond_its_noise():
    assert trend([0.1, 0.2, 0.3, 0.4, 0.5, 0.6]) == "↑"
    assert trend([0.6, 0.5, 0.4, 0.3, 0.2, 0.1]) == "↓"
    assert trend([0.1, 0.9, 0.2, 0.8]) == "→"
    assert trend([0.3, 0.3]) == "→"
    assert trend([0.3]) == ""
    assert sparkline([0.0, 0.5, 1.0]) == "▁▄█"
    assert sparkline([1.0, 1.0]) == "▁▁"
    assert sparkline([math.nan]) == ""


def test_a_table_lines_up():
    assert table([("a", 1), ("bcd", 20)], ("NAME", "N")) == "NAME   N\na      1\nbcd   20"


def seen(*events):
    progress = Progress.of(JOB)
    for event in events:
        progress.apply(event)
    return progress


def step(number, at, **body):
    return JobEvent(id=number, event="step", at=at, step=number, body=body)


def test_progress_follows_the_events():
    progress = seen(
        step(1, 10.0, reward_mean=0.1, exact_solve_rate=0.0, version="1.1", age_histogram={"0": 30, "1": 10}),
        step(2, 14.0, reward_mean=0.3, exact_solve_rate=0.2, version="2.1", age_histogram={"1": 40}),
        JobEvent(3, "progress", body={"waiting": 2, "leased": 30, "finished": 4, "tokens_per_second": 812.0}),
    )
    assert (progress.step, progress.version, progress.staleness) == (2, "2.1", 1.0)
    assert progress.seconds_left == 24.0
    assert progress.in_stages == "2 waiting, 30 at workers, 4 finished"
    line = line_for(step(2, 14.0), progress)
    assert line == (
        "step 2/8  version 2.1  reward 0.300 ↑  solved 20.0%  staleness 1.00  812 tokens/s  "
        "2 waiting, 30 at workers, 4 finished  left 24s"
    )


def test_progress_lives_with_missing_keys():
    progress = seen(step(1, 1.0), JobEvent(2, "progress"), JobEvent(3, "evaluation"), JobEvent(4, "notice"))
    assert line_for(step(1, 1.0), progress).startswith("step 1/8  version -  reward -  solved -")
    assert line_for(JobEvent(3, "evaluation"), progress).startswith("evaluation after step -")


def test_a_state_event_ends_the_watch_with_its_reason():
    event = JobEvent(1, "state", body={"state": "failed", "reason": "disk full"})
    progress = seen(event)
    assert progress.ended
    assert line_for(event, progress) == "sums-1a2b3c is failed: disk full"


def test_the_live_display_renders_at_every_stage_of_a_job():
    from rich.console import Console

    from gateway.cli.live import render

    console = Console(width=100, record=True, file=io.StringIO())
    early, late = seen(), seen(step(1, 1.0, reward_mean=0.5), step(2, 2.0, reward_mean=0.75))
    early.missing = ["rollout"]
    late.notices = ["worker w1 is silent"]
    for progress in (early, late):
        console.print(render(progress, 30.0))

    text = console.export_text()
    assert "no rollout is alive" in text
    assert "0.750" in text
    assert "worker w1 is silent" in text
    assert "step 2/8" in text


def test_the_demo_says_what_was_learned_with_standard_errors():
    def evaluation(mode, version_step, solve_rate):
        return {
            "mode": mode,
            "version_step": version_step,
            "prompts": 256,
            "solve_rate": solve_rate,
            "solve_rate_stderr": 0.03,
            "reward_mean": solve_rate / 2,
            "reward_stderr": 0.02,
        }

    lines = improvement(
        [
            evaluation("sampled", 8, 0.44),
            evaluation("greedy", 0, 0.48),
            evaluation("greedy", 8, 0.67),
            evaluation("sampled", 0, 0.14),
            evaluation("sampled", 4, 0.3),
        ]
    )
    assert lines == [
        "held out, greedy: 256 prompts",
        "  solved exactly  0.480 ± 0.030  ->  0.670 ± 0.030   (+0.190 ± 0.042)",
        "  shaped reward   0.240 ± 0.020  ->  0.335 ± 0.020   (+0.095 ± 0.028)",
        "held out, sampled: 256 prompts",
        "  solved exactly  0.140 ± 0.030  ->  0.440 ± 0.030   (+0.300 ± 0.042)",
        "  shaped reward   0.070 ± 0.020  ->  0.220 ± 0.020   (+0.150 ± 0.028)",
    ]
    assert improvement([]) == ["no held-out evaluation was asked for (`evaluation.prompts` in the job file)"]


def test_an_audit_reads_as_a_balance_and_its_problems():
    found = {
        "job": "sums-1a2b3c",
        "state": "running",
        "balanced": False,
        "ledger_sequence": 40,
        "issued": 96,
        "trained": 64,
        "dropped": 8,
        "dead": 0,
        "in_flight": 24,
        "in_flight_where": {"waiting": 20, "given_up": 4, "scored": 0},
        "dropped_reasons": {"stale": 8},
        "steps": {"batched": 3, "trained": 2, "retired": 2},
        "checkpoint": "2.1",
        "staleness_bound": 1,
        "age_histogram": {"0": 50, "1": 14},
        "problem_count": 3,
        "problems": [{"kind": "doubled", "message": "twice", "samples": [f"s/{i}" for i in range(9)]}],
    }
    assert audit_text(found).splitlines() == [
        "sums-1a2b3c is running: NOT BALANCED at ledger record 40",
        "  issued 96 = trained 64 + dropped 8 + dead 0 + in flight 24",
        "  dropped: 8 stale",
        "  in flight: 20 waiting, 4 given up",
        "  steps: 3 batched, 2 trained, 2 retired; checkpoint 2.1",
        "  batched tokens by age (bound 1): 50 of age 0, 14 of age 1",
        "  doubled: twice [s/0, s/1, s/2, s/3, s/4 ...]",
        "  and 2 more problems",
    ]
