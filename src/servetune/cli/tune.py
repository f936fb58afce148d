"""`servetune tune`: try configurations, real or simulated, and find the best."""

from __future__ import annotations

from servetune import api
from servetune.cli.derive import verb


@verb(api.Study, chart=True)
def tune(request: api.Study, *, chart: bool) -> int:
    """Try every combination of server and client settings and find the best.

    \b
    servetune tune --engine simulated --model Qwen/Qwen3-4B --gpu L4 --gpus 4 \\
      --server-args "tensor_parallel_size=[1,2,4];max_num_seqs=[64,128]" \\
      --client-args "dataset_name=sharegpt" --concurrency 32,64 \\
      --constraints "e2e_latency:p99<=60s;request_throughput>=5"
    """  # noqa: D301 - click reads the backspace as "keep these lines"
    from servetune.cli.outcome import print_outcome

    found = api.tune(request)
    if found.job or found.planned:
        print(found)
    elif found.trials:
        print_outcome(
            found.artifacts,
            found.trials.records,
            found.trials.constraints,
            chosen=found.trials.picks(),
            compared=found.compared,
            chart=chart,
        )
        for load in found.loads:
            print(load)
        print(found.search)
    return found.status
