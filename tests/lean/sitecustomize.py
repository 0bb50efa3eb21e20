"""Python imports this at its start, if PYTHONPATH names its folder: torch has no compiler then.

Optimizers import it only to be left alone by it, profilers and DDP to ask one setting each. It
takes as long as the rest of torch, 3 s of CPU in every process that trains.
"""

import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any


def _as_it_is(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Callable[..., Any]:
    return function


_config = SimpleNamespace(triton=SimpleNamespace(cudagraphs=False))
_left_out = {
    "torch._inductor": SimpleNamespace(config=_config),
    "torch._inductor.config": _config,
    "torch._dynamo": SimpleNamespace(
        disable=_as_it_is,
        graph_break=lambda: None,
        utils=SimpleNamespace(get_optimize_ddp_mode=lambda: "no_optimization"),
        trace_rules=SimpleNamespace(clear_lru_cache=lambda: None),
    ),
}
sys.modules.update(_left_out)  # type: ignore[arg-type]
