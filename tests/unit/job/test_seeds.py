from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from shared.job.seeds import data_seed, order_seed, sampling_seed, trainer_seed


def test_two_runs_of_one_file_draw_the_same() -> None:
    assert sampling_seed(7, "sums-1a2b3c/12/0") == sampling_seed(7, "sums-9z8y7x/12/0")
    assert sampling_seed(7, "sums-1a2b3c/eval-3/12/0") == sampling_seed(7, "sums-9z8y7x/eval-3/12/0")


def test_every_draw_has_a_seed_of_its_own() -> None:
    samples = [f"a/{group}/{index}" for group in range(20) for index in range(8)]
    samples += [f"a/eval-{r}/{group}/0" for r in range(3) for group in range(20)]
    seeds = [sampling_seed(seed, sample) for seed in (0, 1) for sample in samples]
    seeds += [f(seed) for seed in (0, 1) for f in (data_seed, trainer_seed)]
    seeds += [order_seed(0, epoch) for epoch in range(5)] + [data_seed(0, "one_digit")]
    assert len(set(seeds)) == len(seeds)


def test_seeds_are_the_same_on_every_machine() -> None:
    assert [sampling_seed(0, "a/0/0"), data_seed(0), order_seed(0, 0), trainer_seed(0)] == EXPECTED


@given(st.integers(0, 2**31 - 1), st.integers(0, 10**9), st.integers(0, 1023))
def test_a_seed_fits_an_unsigned_31_bit_number(job_seed: int, group: int, index: int) -> None:
    assert 0 <= sampling_seed(job_seed, f"job-1/{group}/{index}") < 2**31


EXPECTED = [669957393, 803406803, 1944551905, 860104051]
