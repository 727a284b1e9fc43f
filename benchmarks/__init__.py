"""What is fast, against whom, as ratios. `python -m benchmarks` runs all of it; `python -m benchmarks memory` one."""
