"""A connection to Ray, or a Ray of our own on this machine. Ray Data is imported elsewhere."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import ray

from wherefrom.errors import InputError
from wherefrom.scale.engines import Engine


@contextmanager
def connected(engine: Engine) -> Iterator[None]:
    """The Ray that runs already, else that of the address, else a local one until the end."""
    if ray.is_initialized():
        yield
        return
    options: dict[str, Any] = {"address": engine.address}
    if engine.address is None:
        options = {"address": "local", "num_cpus": engine.workers or os.cpu_count()}
        if "RAY_worker_niceness" not in os.environ:  # Ray's 15 is for machines that others use too
            options["_system_config"] = {"worker_niceness": 0}
    try:
        ray.init(**options, log_to_driver=False, logging_level=logging.ERROR)
    except (ConnectionError, ValueError, RuntimeError) as error:
        raise InputError(f"cannot start or reach Ray ({options['address']}): {error}") from error
    for name in ("ray.data", "ray"):  # a line of progress is shown instead
        logging.getLogger(name).setLevel(logging.ERROR)
    try:
        if engine.address is None:
            _check_gpus(engine)
        yield
    finally:
        if engine.address is None:
            _end_autoscaler()
        ray.shutdown()


def _end_autoscaler() -> None:
    """Ends a process that a Ray on one machine does not need, and whose end takes Ray a second."""
    node = getattr(ray._private.worker, "_global_node", None)
    for info in node.all_processes.get("monitor", ()) if node is not None else ():
        info.process.kill()


def _check_gpus(engine: Engine) -> None:
    """A local Ray gets no more graphics cards; a cluster may, so there Ray waits for them."""
    needed = (engine.workers or 1) * engine.gpus_per_worker
    present = ray.cluster_resources().get("GPU", 0)
    if needed > present:
        raise InputError(f"the workers need {needed:g} GPUs, and this machine has {present:g}.")


def free_workers(engine: Engine) -> int:
    """As many workers as the cluster has processors, or graphics cards for them, now."""
    resources = ray.cluster_resources()
    if engine.gpus_per_worker:
        return max(1, int(resources.get("GPU", 0) / engine.gpus_per_worker))
    return max(1, int(resources.get("CPU", 1)))
