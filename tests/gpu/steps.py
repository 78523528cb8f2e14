"""What is done on a GPU, step by step: values first, then equal tokens, then speeds. A step that fails takes no other with it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from tests.gpu import speed
from tests.gpu.measure import Bench, Row
from tests.gpu.rounds import check_rounds, time_rounds
from tests.gpu.serving import check_serving
from tests.gpu.values import all_checks, checked

Step = Callable[[Bench, float], list[Row]]
"""Takes the copy bandwidth in bytes a second, gives rows of the table. Raises what it likes."""

LIMIT_S = 150.0
"""A step that takes longer is given up."""


def steps() -> Mapping[str, Step]:
    """By name, in the order they run."""
    found: dict[str, Step] = {
        f"values {check.__name__}": _without_copy(partial(checked, check)) for check in all_checks()
    }
    found["equal tokens, eager and captured"] = _without_copy(check_rounds)
    found["the server's rounds"] = _without_copy(check_serving)
    for length in speed.LENGTHS:
        found[f"attention at {length}"] = partial(speed.attention_grid, length=length)
    found["attention's peers"] = speed.attention_peers
    found["norm, activation, K/V write"] = speed.rows_kernels
    found["packed and experts' products"] = speed.weight_kernels
    found["latent attention"] = speed.latent_kernels
    found["draft candidates"] = speed.candidates_kernel
    found["build, walk, choice"] = _without_copy(speed.latencies)
    found["whole rounds, timed"] = time_rounds
    return found


def _without_copy(step: Callable[[Bench], list[Row]]) -> Step:
    return lambda bench, copy: step(bench)
