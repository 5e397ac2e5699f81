"""Train several independent models at once, each on a device of its own, or all on one GPU.

A cell measures its own model. The models beside it (``companions``) train at the same time in
processes of their own, from a common start, with the same settings and on the same data.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import ClassVar

from parbench import models
from parbench.cell import Model
from parbench.strategies import _rendezvous, eager
from parbench.words import nearest


class Strategy(eager.Strategy):
    """One process with one model, which the training loop treats as the only model.

    Process 0 has the cell's model, process n the n-th model beside it. They wait for each
    other only while nothing is timed.
    """

    OPTIONS: ClassVar[dict[str, dict]] = {
        "beside": {
            "description": "models that train at the same time, each on its own device or all on "
            "one GPU: names, each with the options that differ from the defaults; the cell's own "
            "model may be included",
            "type": "object",
            "additionalProperties": {"type": "object"},
            "minProperties": 1,
        },
    }

    @property
    def ranks_per_node(self) -> int:
        """One process for each model."""
        return 1 + len(self.companions)

    @property
    def _share(self) -> bool:
        """Whether all models share one GPU. A single core is not shared: each would get half."""
        return self.cell.hardware.device == "cuda" and self.cell.hardware.devices == 1

    @property
    def companions(self) -> dict[str, dict]:
        """The other models, sorted, since their order in the study does not matter."""
        others = sorted(set(self.options["beside"]) - {self.cell.model.name})
        return {name: self.options["beside"][name] for name in others}

    def check(self) -> Iterator[str]:
        """Require a device per model, or one GPU, and the study's options for the cell's own
        model."""
        beside, model, hardware = self.options["beside"], self.cell.model, self.cell.hardware
        count = self.ranks_per_node
        if count == 1:
            yield (
                f"beside lists only the cell's own model, {model.name}; add another model, or "
                "choose eager"
            )
        elif hardware.nodes != 1 or not (hardware.devices == count or self._share):
            yield (
                f"{count} models ({model.name} and those beside it) need one device each on a "
                f"single node; choose hardware with devices: {count} and nodes: 1"
            )
        for name in sorted(beside):
            if not models.exists(name):
                yield f"beside: unknown value {name!r}{nearest(name, models.names())}"
        named_options = beside.get(model.name)
        own_options = models.options(model.name, model.options)
        named = own_options if named_options is None else models.options(model.name, named_options)
        if differing := [key for key, value in own_options.items() if named[key] != value]:
            yield (
                f"beside.{model.name}: its options differ from those of the study's own "
                f"{model.name} in {', '.join(differing)}; make the two agree"
            )

    @classmethod
    def certified(cls) -> Iterator[tuple[int, dict]]:
        """Yield two models at once; both processes train the certified model, whatever ``beside``
        is."""
        yield 2, {"beside": {"simple_cnn": {}}}

    def setup(self) -> None:
        """Connect to the other processes, and choose the model of this one."""
        import torch

        self.local_rank = self.companion = _rendezvous.local_rank()
        self.devices = [self.device(0 if self._share else self.local_rank)]
        if self.devices[0].type == "cuda":
            torch.cuda.set_device(self.devices[0])
        self._store = _rendezvous.store(self.cell.run)
        self._processes = _rendezvous.world_size()
        self._sent: set[str] = set()
        if self.companion:
            name, options = list(self.companions.items())[self.companion - 1]
            self.model = Model(name, models.options(name, options))

    def exchange_messages(self, what: str, message: object = None) -> list | None:
        """Exchange messages through the run's store, without blocking, so that a waiting process
        can send heartbeats."""
        if what not in self._sent:
            self._sent.add(what)
            key = f"parbench/{what}/{self.local_rank}"
            self._store.set(key, json.dumps(message))
            self._store.add(f"{key}/reported", 1)
        messages = self.messages(what)
        return messages if len(messages) == self._processes else None

    def messages(self, what: str) -> list:
        """Return the messages so far. Counters show which exist: get() would block for a missing
        one."""
        keys = [f"parbench/{what}/{process}" for process in range(self._processes)]
        existing = [key for key in keys if self._store.add(f"{key}/reported", 0)]
        return [json.loads(self._store.get(key)) for key in existing]
