"""The kept runs, asked without stopping the screen: files and database are read in a thread of their own."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from console.experiments.store import Store

Answer = TypeVar("Answer")


@dataclass(frozen=True)
class Archive:
    """The store below one folder."""

    folder: Path

    async def ask(self, question: Callable[[Store], Answer]) -> Answer:
        """What `question` finds in the store. Raises OperatorError where the store cannot be used, or has no such run."""

        def asked() -> Answer:
            with Store(self.folder) as store:
                return question(store)

        return await asyncio.to_thread(asked)
