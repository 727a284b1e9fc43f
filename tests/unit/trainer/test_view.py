from services.trainer.view import TrainerView
from shared.wire.messages import Attempt, Batched, BatchedSample, Dropped, Ending, Trained, batch_digest


def batched(step: int) -> Batched:
    samples = [
        BatchedSample(sample=f"j/{step}/{i}", attempt=Attempt(1, i), sequence=10 * step + i, digest="d", reward=0.0)
        for i in range(2)
    ]
    return Batched(epoch=1, step=step, trainer_epoch=1, samples=samples)


def trained(first: int, last: int, oldest: int) -> Trained:
    return Trained(epoch=1, first=first, last=last, digest="x", checkpoint=f"{last}.1", oldest_kept_step=oldest)


def view(*records) -> TrainerView:
    made = TrainerView()
    for sequence, record in enumerate(records, start=1):
        made.apply(sequence, record)
    return made


def test_batches_are_kept_while_a_checkpoint_may_fall_back_behind_them():
    made = view(*(batched(s) for s in range(1, 6)), trained(1, 2, 0), trained(3, 4, 2))
    assert sorted(made.batched) == [3, 4, 5] and sorted(made.trained) == ["2.1", "4.1"]


def test_the_digest_is_that_of_all_batches_or_none():
    made = view(batched(1), batched(2))
    assert made.digest(1, 2) == batch_digest([batched(1), batched(2)])
    assert made.digest(1, 3) is None
    assert made.digest(1, 0) == batch_digest([])


def test_an_early_end_moves_the_last_step():
    made = view()
    assert made.last_step(10) == 10
    made.apply(1, Ending(epoch=1, last_step=4, reason="solved"))
    assert made.last_step(10) == 4 and made.last_step(3) == 3


def test_a_step_whose_samples_were_dropped_is_closed():
    made = view(batched(1), batched(2), Dropped(epoch=1, samples=["j/2/0", "j/9/0"], reason="job ended"))
    assert made.closed == {2}
