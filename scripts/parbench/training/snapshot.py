"""Write the state of a training to a checkpoint and restore it, on all ranks together."""

from __future__ import annotations

import warnings

import torch
from safetensors import SafetensorError

from parbench.training.checkpoint import Place
from parbench.training.endings import Stopped
from parbench.training.run import Run


def write(run: Run) -> None:
    """Write a checkpoint from rank 0; then raise Stopped if the launcher has asked to stop.

    If every rank has a whole model, buffers and optimizer are taken from rank 0: its running
    statistics are the ones that count, and all optimizers are equal.
    """
    run.beat("checkpoint")
    strategy, place = run.strategy, run.place
    random = strategy.gathered([float(byte) for byte in _random_state(strategy.devices)])
    losses = strategy.gathered([place.loss])
    state = {
        "kept": place.json(),
        "machine": run.machine,
        "seconds": place.seconds,
        "history": run.history,
        "scaler": run.scaler.state_dict(),
        "meters": run.meters.keep(),
        "profile": run.profile.state(),
        "started": run.started,
        "resumed_from": run.resumed_from,
    }
    weights = strategy.full_tensors(run.state())
    optimizer_state = strategy.optimizer_state(run.optimizer, run.parameters)
    if strategy.rank == 0 and run.store is not None:
        tensors = {f"model.{name}": value for name, value in weights.items()}
        tensors |= {f"optimizer.{name}": value for name, value in optimizer_state.items()}
        tensors["random"] = torch.tensor(random, dtype=torch.uint8)
        # A tensor, since JSON has no NaN; divergence is detected at the end of the epoch.
        tensors["losses"] = torch.tensor(losses, dtype=torch.float64)
        try:
            run.store.write(place.epoch * len(run.bounds) + place.step, tensors, state)
            run.kept = state["kept"]
        except (OSError, SafetensorError) as error:  # a full disk must not end the training
            print(
                f"checkpoint: none could be written to {run.store.folder} ({error}); "
                f"after an interruption training would go on from {_place_text(run.kept)}",
                flush=True,
            )
    run.checkpoint_timer.restart()
    if run.checkpoint_timer.stop:
        raise Stopped


def resume(run: Run, number: int) -> None:
    """Restore the checkpoint ``number``, or this rank's part of it."""
    assert run.store is not None
    state, tensors = run.store.read(number)
    place, rank = state["kept"], run.strategy.rank
    run.strategy.load(run.model, _part("model", tensors))
    optimizer_state = _part("optimizer", tensors)
    run.strategy.load_optimizer_state(run.optimizer, run.parameters, optimizer_state)
    # The schedule depends only on the number of steps. torch warns about the order of calls.
    with warnings.catch_warnings(action="ignore"):
        for _ in range(number):
            run.next_rate()
    run.scaler.load_state_dict(state["scaler"])
    _set_random_state(tensors["random"][rank], run.strategy.devices)
    loss = tensors["losses"][rank].item()
    run.place = Place(place["epoch"] - 1, place["step"], state["seconds"], loss)
    run.history, run.started = state["history"], state["started"]
    run.meters.resume(state["meters"])
    run.profile.resume(state["profile"])
    run.resumed_from = [
        *state["resumed_from"],
        {"epoch": place["epoch"], "step": place["step"], "machine": state["machine"]},
    ]
    if run.strategy.leads:
        elsewhere = state["machine"] != run.machine
        remark = (
            " (from another machine: no speedup is computed from these times)" if elsewhere else ""
        )
        print(f"checkpoint: goes on from {_place_text(place)}{remark}", flush=True)


def _place_text(kept: dict[str, int]) -> str:
    return f"epoch {kept['epoch']}, step {kept['step']}"


def _part(part: str, tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    prefix = f"{part}."
    return {name.removeprefix(prefix): v for name, v in tensors.items() if name.startswith(prefix)}


def _random_state(devices: list[torch.device]) -> list[int]:
    """Return the random states of this process and its accelerators, as a list of bytes."""
    states = [torch.get_rng_state()]
    states += [torch.cuda.get_rng_state(device) for device in devices if device.type == "cuda"]
    return torch.cat(states).tolist()


def _set_random_state(state: torch.Tensor, devices: list[torch.device]) -> None:
    """Restore what ``_random_state`` returned, a uint8 tensor on the CPU."""
    size = len(torch.get_rng_state())
    torch.set_rng_state(state[:size].clone())
    accelerators = [device for device in devices if device.type == "cuda"]
    if accelerators:
        parts = state[size:].chunk(len(accelerators))
        for device, part in zip(accelerators, parts, strict=True):
            torch.cuda.set_rng_state(part.clone(), device)
