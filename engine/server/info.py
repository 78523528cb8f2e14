"""What the service tells of itself: health, readiness, the model, settings in force, the pool and the box."""

from __future__ import annotations

import asyncio
import os
import platform
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response

from engine.acceptance import AcceptanceWindow
from engine.config import leaf_settings, settings_sha
from engine.host import HostSampler
from engine.runtime import Runtime
from engine.server.metrics import Metrics
from engine.server.service import Service, Serving
from engine.telemetry import LineLog, Telemetry


@dataclass(frozen=True)
class Instruments:
    """Everything that watches the engine and is read here."""

    log: LineLog
    telemetry: Telemetry
    acceptance: AcceptanceWindow
    metrics: Metrics
    host: HostSampler


async def health(service: Service, request: Request) -> Response:
    """GET /health: the process is up, whatever it is doing."""
    return JSONResponse({"status": service.state, "phase": service.phase})


async def ready(service: Service, request: Request) -> Response:
    """GET /ready: 200 once a token was really generated since the start, 503 before that and while shutting down."""
    is_ready = service.state == "serving"
    return JSONResponse({"ready": is_ready, "phase": service.phase}, status_code=200 if is_ready else 503)


async def models(service: Service, request: Request) -> Response:
    """GET /v1/models: the one model served."""
    engine = service.serving()
    model = {
        "id": engine.model_name,
        "object": "model",
        "created": int(service.started_s),
        "owned_by": "ddtree",
        "max_model_len": engine.runtime.max_context,
    }
    return JSONResponse({"object": "list", "data": [model]})


async def metrics(service: Service, instruments: Instruments, request: Request) -> Response:
    """GET /metrics, in Prometheus' text format."""
    load = service.engine.scheduler.load if service.engine is not None else None
    text = instruments.metrics.text(load, instruments.log.lost)
    return PlainTextResponse(text, media_type="text/plain; version=0.0.4; charset=utf-8")


async def server_info(service: Service, instruments: Instruments, request: Request) -> Response:
    """GET /server_info; 503 until the engine serves."""
    engine = service.engine or service.serving()
    load = engine.scheduler.load()
    return JSONResponse(
        {
            "engine": "bundled",
            **identity(service),
            **model_figures(engine),
            "settings": leaf_settings(engine.runtime.config),
            "settings_sha": settings_sha(service.asked),
            "kv": pool_figures(engine.runtime),
            "versions": versions(),
            "requests": {
                "running": load.running,
                "queued": load.queued,
                "served": instruments.metrics.served,
                "refused": instruments.metrics.refused,
            },
            "window": instruments.telemetry.last_window,
            "speculation": asdict(instruments.acceptance.figures()),
            **await asyncio.to_thread(box_figures, instruments.host),  # a driver may take its time to answer
        }
    )


def box_figures(sampler: HostSampler) -> dict[str, Any]:
    """`{"host", "process", "gpus", "driver"}` now."""
    return {
        "host": asdict(sampler.host()),
        "process": asdict(sampler.process()),
        "gpus": [asdict(gpu) for gpu in sampler.gpus()],
        "driver": sampler.driver(),
    }


def identity(service: Service) -> dict[str, Any]:
    """Which start of which release this is."""
    return {
        "version": metadata.version("ddtree-console"),
        "release": release_of(Path(__file__)),
        "pid": os.getpid(),
        "started": service.started_s,
        "invocation": os.environ.get("INVOCATION_ID"),
    }


def release_of(file: Path) -> str | None:
    """The name of the installed release that this file of `engine/server` belongs to, `0.1.0-3f2a91c0`; None in a checkout."""
    app = file.parents[2]
    return app.parent.name if (app.name, app.parent.parent.name) == ("app", "releases") else None


def model_figures(engine: Serving) -> dict[str, Any]:
    """`{"model": …, "drafter": … or null}`."""
    runtime = engine.runtime
    target, drafter = runtime.target, runtime.drafter
    return {
        "model": {
            "path": runtime.config.model.path,
            "name": engine.model_name,
            "weights_sha": engine.model_sha,
            "architecture": target.config.architecture,
            "max_position_embeddings": target.config.max_position_embeddings,
            "parameters": sum(parameter.numel() for parameter in target.parameters()),
        },
        "drafter": None
        if drafter is None
        else {
            "path": runtime.config.model.drafter,
            "weights_sha": engine.drafter_sha,
            "max_position_embeddings": engine.drafter_positions,
            "block_size": drafter.config.block_size,
            "target_layer_ids": list(drafter.config.target_layer_ids),
            "mask_token_id": drafter.config.mask_token_id,
        },
    }


def pool_figures(runtime: Runtime) -> dict[str, Any]:
    """The KV pool in pages, tokens and bytes."""
    return {
        "page_size": runtime.config.kv.page_size,
        "pages_total": runtime.pages_total,
        "pages_used": runtime.pages_used,
        "pages_kept": runtime.pool.kept,
        "bytes_per_token": runtime.kv_bytes_per_token,
        "capacity_tokens": runtime.capacity_tokens,
    }


def versions() -> Mapping[str, str]:
    """What the engine runs on."""
    found = {"python": platform.python_version(), "torch": torch.__version__}
    if torch.version.cuda is not None:
        found["cuda"] = torch.version.cuda
    try:
        return {**found, "triton": metadata.version("triton")}
    except metadata.PackageNotFoundError:
        return found  # torch for CPUs brings none


def ready_figures(service: Service, engine: Serving, address: str, load_s: float) -> dict[str, Any]:
    """Fields of the `ready` line: settings in force, the pool, versions (contracts.md section 3)."""
    pool = pool_figures(engine.runtime)
    drafter = model_figures(engine)["drafter"]
    return {
        **identity(service),
        "model": engine.model_name,
        "address": address,
        "load_s": round(load_s, 3),
        "kv_total": pool["pages_total"],
        "capacity_tokens": pool["capacity_tokens"],
        "bytes_per_token": pool["bytes_per_token"],
        **{f"{name}_version": version for name, version in versions().items()},
        "settings_sha": settings_sha(service.asked),
        "trained_block": None if drafter is None else drafter["block_size"],
        **leaf_settings(engine.runtime.config),
    }
