"""The demo's own part, with a stack that is handed in: submit, watch, what was learned, and the model's folder."""

import contextlib
import json
import threading

import msgspec
import pytest

from gateway.cli.demo import StackFailed, demo
from shared.wire import messages as m
from shared.wire import topics
from shared.wire.jobs import change_job, list_jobs


@pytest.fixture
def fleet(gateway, services, until):
    """Plays the services for the next job: two steps, two evaluations, one checkpoint, then the end."""
    services.serve()
    before = {job.id for job in services.do(list_jobs(services.bus))}

    def play(state="completed"):
        def submitted():
            return [job.id for job in services.do(list_jobs(services.bus)) if job.id not in before]

        (job,) = until(submitted, "submitted job")
        services.do(services.bus.declare(topics.job_streams(job)))
        tell_evaluation(job, 0, 0.25)
        for step in (1, 2):
            services.tell(job, "step", step, reward_mean=step / 4, version=f"{step}.1")
        tell_evaluation(job, 1, 0.5, version_step=2)
        commit(job)
        services.do(change_job(services.bus, job, lambda r: msgspec.structs.replace(r, state=state, reason="why")))
        services.tell(job, "state", state=state, reason="why")

    def tell_evaluation(job, number, rate, version_step=0):
        figures = {
            "solve_rate": rate,
            "solve_rate_stderr": 0.1,
            "reward_mean": rate,
            "reward_stderr": 0.1,
            "prompts": 16,
        }
        services.tell(job, "evaluation", round=number, version_step=version_step, mode="greedy", **figures)

    def commit(job):
        folder = gateway.data / "checkpoints" / job / "2.1" / "model"
        folder.mkdir(parents=True)
        (folder / "config.json").write_text("{}")
        batch = [m.Batched(epoch=1, step=step, trainer_epoch=1, samples=[]) for step in (1, 2)]
        opened = [m.EpochOpened(epoch=1, role=role, holder="h") for role in m.LEDGER_ROLES]
        trained = m.Trained(
            epoch=1, first=1, last=2, digest=m.batch_digest(batch), checkpoint="2.1", oldest_kept_step=0
        )
        for record in (*opened, *batch, trained):
            subject = topics.ledger_subject(job, "trainer")
            services.do(services.bus.publish(subject, m.encode(record)))

    return play


@contextlib.contextmanager
def played(fleet, *state):
    thread = threading.Thread(target=fleet, args=state)
    thread.start()
    yield
    thread.join(30)


def test_it_ends_with_what_was_learned_the_balance_the_model_and_what_to_try(
    gateway, fleet, job_file, tmp_path, capsys
):
    (tmp_path / "model").mkdir()
    with played(fleet):
        code = demo(job_file, tmp_path / "model", lambda: contextlib.nullcontext(gateway.url))
    said = capsys.readouterr().out
    assert code == 0
    assert "step 2/3  version 2.1  reward 0.500" in said
    assert "solved exactly  0.250 ± 0.100  ->  0.500 ± 0.100   (+0.250 ± 0.141)" in said
    assert "balanced: no sample lost, none counted twice" in said
    assert f"trained model  {tmp_path / 'model-2'}" in said  # the first name was taken
    assert json.loads((tmp_path / "model-2" / "config.json").read_text()) == {}
    assert "try next:" in said


def test_a_job_that_fails_is_status_1_with_its_reason(gateway, fleet, job_file, tmp_path, capsys):
    with played(fleet, "failed"):
        code = demo(job_file, tmp_path / "model", lambda: contextlib.nullcontext(gateway.url))
    said = capsys.readouterr()
    assert code == 1
    assert "failed: why" in said.err
    assert not (tmp_path / "model").exists()


def test_a_stack_that_does_not_start_is_one_line_and_its_status(job_file, tmp_path, capsys):
    @contextlib.contextmanager
    def broken():
        raise StackFailed("port 8400 is taken", 2)
        yield

    assert demo(job_file, tmp_path / "model", broken) == 2
    assert "the stack did not start: port 8400 is taken" in capsys.readouterr().err
