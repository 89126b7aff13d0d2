"""Step 2 on a GPU against copying its two arrays, in one run: `python benchmarks/gpu.py`."""

import torch

import probconserv as pc


def milliseconds(job, repeats: int = 50) -> float:
    for _ in range(5):
        job()
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    for _ in range(repeats):
        job()
    end.record()
    torch.cuda.synchronize()
    return start.elapsed_time(end) / repeats


def main() -> None:
    print(f"torch {torch.__version__}, {torch.cuda.get_device_name()}\n")
    print(
        "| 200 x 201 x 201 points | copy, ms | eager / copy | compiled / copy |\n|---|---|---|---|"
    )
    rng = torch.Generator("cuda").manual_seed(0)
    for dtype in (torch.float32, torch.float64):
        mean, variance = torch.rand(2, 200, 201, 201, generator=rng, device="cuda", dtype=dtype)
        print(row(mean, variance))


def row(mean: torch.Tensor, variance: torch.Tensor) -> str:
    x = torch.linspace(0, 1, 201, device="cuda", dtype=torch.float64)
    law = pc.integral(x, 0.5 + x / 20)  # what the fields can be moved to without a warning

    def step2() -> tuple[torch.Tensor, torch.Tensor]:
        post = pc.condition(pc.Diagonal(mean, variance), law)
        return post.mean, post.variance

    copy = milliseconds(lambda: (mean.clone(), variance.clone()))
    eager, compiled = milliseconds(step2), milliseconds(torch.compile(step2, fullgraph=True))
    return f"| {mean.dtype} | {copy:.3f} | {eager / copy:.1f} | {compiled / copy:.1f} |"


if __name__ == "__main__":
    main()
