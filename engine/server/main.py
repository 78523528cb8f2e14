"""`python -m engine serve`: one process, two threads. The engine's thread owns the model; this one serves HTTP."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
import threading
import time
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

import uvicorn

from engine.acceptance import AcceptanceWindow
from engine.config import load_config
from engine.events import Event, Failed, Observer, Ready
from engine.host import HostSampler
from engine.notify import Notifier
from engine.scheduler import EngineBrokenError
from engine.server.app import create_app
from engine.server.auth import read_api_key, require_key_off_loopback
from engine.server.info import Instruments, ready_figures
from engine.server.listen import address_of, listen
from engine.server.loading import load_engine
from engine.server.metrics import Metrics
from engine.server.service import Service
from engine.server.trees import TreeFeed
from engine.telemetry import LineLog, Telemetry

STOP_WITHIN_S = 20.0
"""What runs when a stop is asked for may take so long to finish."""
CLOSE_WITHIN_S = 3
"""After that, open connections have so long to read what was sent to them."""
JOIN_WITHIN_S = 1.0
"""And the engine's thread, which ended before them unless it still loads, so long to come back."""


class LoadingStoppedError(Exception):
    """A stop was asked for before the engine was ready."""


@dataclass
class EngineThread:
    """Loads the engine, runs it until it is drained, and keeps what went wrong."""

    service: Service
    observers: tuple[Observer, ...]
    trees: TreeFeed
    notifier: Notifier
    address: str
    failure: Exception | None = None

    def run(self, server: uvicorn.Server) -> None:
        """The thread's body; the HTTP side goes when the engine has gone."""
        try:
            self._load_and_run()
        except LoadingStoppedError:
            pass  # asked for
        except Exception as failure:  # noqa: BLE001 - kept for `serve`, which raises it on the main thread
            self.failure = failure
            self.tell(Failed(where=self.service.phase, error=f"{type(failure).__name__}: {failure}"))
            self.service.begin_draining()
            self.notifier.status(f"failed: {failure}")
        finally:
            self.trees.close()
            server.should_exit = True

    def _load_and_run(self) -> None:
        began = time.monotonic()
        engine = load_engine(self.service.asked, self.observers, self.notifier, self._begin_phase)
        self.trees.tokenizer = engine.tokenizer
        self.service.begin_serving(engine)
        self._stop_if_asked()
        self.tell(Ready(ready_figures(self.service, engine, self.address, time.monotonic() - began)))
        self.notifier.ready(f"serving {engine.model_name} on {self.address}")
        engine.scheduler.run()

    def _begin_phase(self, phase: str) -> None:
        self._stop_if_asked()
        self.service.begin_phase(phase)
        self.notifier.loading(phase)

    def _stop_if_asked(self) -> None:
        if self.service.state == "draining":
            raise LoadingStoppedError

    def stop(self) -> None:
        """Take no new work and end, as soon as what runs allows."""
        self.service.begin_draining()
        self.notifier.stopping("finishing what runs", STOP_WITHIN_S + CLOSE_WITHIN_S)
        if self.service.engine is not None:
            self.service.engine.scheduler.drain(STOP_WITHIN_S)

    def tell(self, event: Event) -> None:
        """Every observer hears of `event`."""
        for observer in self.observers:
            observer(event)


class GracefulServer(uvicorn.Server):
    """uvicorn, but a signal drains the engine first; the engine's end closes the server."""

    def __init__(self, config: uvicorn.Config, engine: EngineThread) -> None:
        super().__init__(config)
        self._engine = engine
        self._stopping = False

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """SIGTERM or SIGINT: the first drains, a second one does not wait."""
        if self._stopping:
            self.should_exit = self.force_exit = True
            return
        self._stopping = True
        # Signals interrupt this thread anywhere, locks held or not: the work is done from the loop.
        asyncio.get_running_loop().call_soon_threadsafe(self._stop)

    def _stop(self) -> None:
        """What runs ends in its own time and closes the server; a phase of loading, which may take minutes, is not waited for."""
        self._engine.stop()
        if self._engine.service.engine is None:
            self.should_exit = True


def serve(config_path: str | Path) -> int:
    """Serve until stopped; returns the exit status: 0 stopped, 1 the engine broke while it served.

    Raises EngineError for bad input: settings, models, key file, port.
    """
    config = load_config(config_path)
    api_key = read_api_key(config.server.api_key_file)
    require_key_off_loopback(config.server.host, api_key)
    # A client that leaves while it is written to is no warning, and no line of another form belongs into the log.
    logging.getLogger("asyncio").setLevel(logging.ERROR)
    with closing(listen(config.server.host, config.server.port)) as listener:
        log = LineLog(sys.stdout)
        telemetry, acceptance, metrics = Telemetry(log, config.log.interval_s), AcceptanceWindow(), Metrics()
        trees = TreeFeed()
        engine = EngineThread(
            service=Service(config),
            observers=(telemetry.observe, acceptance.observe, metrics.observe, trees.observe),
            trees=trees,
            notifier=Notifier.from_environment(os.environ),
            address=address_of(listener),
        )
        instruments = Instruments(log, telemetry, acceptance, metrics, HostSampler())
        app = create_app(engine.service, instruments, trees, engine.tell, api_key)
        settings = uvicorn.Config(
            app,
            lifespan="off",
            ws="none",
            access_log=False,
            log_level="critical",  # failures are told as records; what strangers send to a port is none
            use_colors=False,
            server_header=False,
            timeout_graceful_shutdown=CLOSE_WITHIN_S,
        )
        server = GracefulServer(settings, engine)
        thread = threading.Thread(target=engine.run, args=(server,), name="engine", daemon=True)
        thread.start()
        server.run(sockets=[listener])
        # It ends as asked: one more signal must not make that look like a crash.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        thread.join(timeout=JOIN_WITHIN_S)
        if thread.is_alive():
            # Stopped in the middle of a loading phase: a usual exit would take torch apart while it is at work.
            os._exit(0)
    if isinstance(engine.failure, EngineBrokenError):
        return 1  # told in the log already
    if engine.failure is not None:
        raise engine.failure
    return 0
