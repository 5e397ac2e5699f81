"""Train a small network on two CPU processes, started by torchrun or by Ray Train.

    python -m torch.distributed.run --nproc-per-node 2 parity.py
    python parity.py ray 2

Both train alike, as in the benchmark of Ray's documentation: network, optimizer, batch and
DistributedDataParallel are its own; images are drawn at random instead of FashionMNIST's.
"""

import itertools
import sys

import torch
from mlp import network
from parbench_turns import step
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

IMAGES, PIXELS, CLASSES = 60_000, 28 * 28, 10  # of FashionMNIST
BATCH = 64  # of all processes together
WARM_UP = 1_500  # steps, within which Ray's other processes have started


def images():
    """Return as many images as FashionMNIST has, and their classes."""
    drawn = torch.Generator().manual_seed(0)
    pixels = torch.rand(IMAGES, PIXELS, generator=drawn)
    return TensorDataset(pixels, torch.randint(CLASSES, (IMAGES,), generator=drawn))


def train(model, batches):
    """Train without end: whoever compares stops it. Steps count after WARM_UP."""
    steps = itertools.count()
    loss_of, optimizer = nn.CrossEntropyLoss(), torch.optim.SGD(model.parameters(), lr=1e-3)
    for epoch in range(sys.maxsize):
        if isinstance(batches.sampler, DistributedSampler):
            batches.sampler.set_epoch(epoch)
        for pixels, classes in batches:
            loss = loss_of(model(pixels), classes)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if next(steps) >= WARM_UP:
                step(samples=len(pixels))


def by_torchrun():
    """Train in this process, one of those that torchrun has started."""
    distributed.init_process_group("gloo")
    data = images()
    batch = BATCH // distributed.get_world_size()
    batches = DataLoader(data, batch, sampler=DistributedSampler(data))
    train(DistributedDataParallel(network(PIXELS, CLASSES)), batches)


def by_ray(_):
    """Train in this process, one of Ray Train's workers."""
    from ray.train import torch as prepare

    batch = BATCH // distributed.get_world_size()
    batches = prepare.prepare_data_loader(DataLoader(images(), batch, shuffle=True))
    train(prepare.prepare_model(network(PIXELS, CLASSES)), batches)


def main():
    """Train in the processes that are there, or let Ray start as many as the command line says."""
    torch.manual_seed(0)
    if sys.argv[1:2] != ["ray"]:
        by_torchrun()
        return
    import ray
    from ray.train import ScalingConfig
    from ray.train.torch import TorchTrainer

    count = int(sys.argv[2])
    ray.init(num_cpus=count, include_dashboard=False)
    workers = ScalingConfig(num_workers=count, resources_per_worker={"CPU": 1})
    TorchTrainer(by_ray, train_loop_config={}, scaling_config=workers).fit()


if __name__ == "__main__":
    main()
