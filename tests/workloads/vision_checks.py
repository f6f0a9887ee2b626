"""What one framework makes of the image workloads, in a process of its own:
`python -m tests.workloads.vision_checks FRAMEWORK FOLDER`. PyTorch's turn comes first: it writes the weights that all
read, under torchvision's names, and its features are what the others' are held against."""

from __future__ import annotations

import json
import sys
import zlib
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from metalmark.backends.catalog import FRAMEWORKS
from metalmark.model.plan import Device, DeviceKind, Mode, Plan, Proving, Settings
from metalmark.workloads import mobilenet_v2, resnet50, vgg16
from metalmark.workloads.catalog import load

# Even sizes are where paddings differ; 65 is odd all the way down; 96 leaves VGG16 a 3x3 to spread over 7x7.
BACKBONES = {module.BACKBONE.name: module.BACKBONE for module in (mobilenet_v2, resnet50, vgg16)}
SIZES = {"resnet50": (64,), "mobilenet_v2": (64, 65), "vgg16": (96,)}
WORKLOADS = {"resnet50": "resnet50-transfer", "mobilenet_v2": "mobilenet-cifar10", "vgg16": "vgg16-flowers"}


def sizes(framework: str, architecture: str) -> tuple[int, ...]:
    """JAX compiles for each size anew, and has its padding from the same Keras layers as TensorFlow: one will do."""
    return SIZES[architecture][: 1 if framework == "jax" else None]


def parameters(workload: str, **changed: Any) -> dict[str, Any]:
    return {**{p.name: p.default for p in load(workload).params}, "batch_size": 4, "pixels": 32, **changed}


def plan(workload: str, framework: str, **changed: Any) -> Plan:
    """One thread for PyTorch: two wait for each other through every small layer on a machine that others use too."""
    return Plan(
        workload=workload,
        params=parameters(workload, **changed),
        mode=Mode.TRAINING,
        framework=framework,
        device=Device(kind=DeviceKind.CPU),
        settings=Settings(threads=1 if framework == "torch" else None),
        proof=Proving.STRICT,
    )


def features(framework: str, architecture: str, pixels: int, weights: str) -> np.ndarray:
    """What the backbone makes of two fixed images, as NHWC."""
    family = FRAMEWORKS[framework].family
    module = import_module(f"metalmark.workloads.vision.on_{family}")
    built = module.backbone(BACKBONES[architecture], {"weights": weights, "pixels": pixels})
    images = np.random.default_rng(1).standard_normal((2, pixels, pixels, 3), np.float32)
    if family == "keras":
        return np.asarray(built.predict(images, verbose=0))
    if family == "mlx":
        from mlx import core as mx

        return np.array(built.eval()(mx.array(images)))
    import torch

    with torch.no_grad():
        return built.eval()(torch.from_numpy(images.transpose(0, 3, 1, 2))).permute(0, 2, 3, 1).numpy()


def counts(framework: str, workload: str) -> dict[str, tuple[int, int]]:
    found = {}
    for train in ("head", "all"):
        with FRAMEWORKS[framework].backend().open(plan(workload, framework, train=train), load(workload)) as session:
            found[train] = (session.parameters, session.trainable_parameters)
    return found


def moved(framework: str, train: str) -> dict[str, bool]:
    """Which parts of mobilenet-cifar10 two training steps change, statistics apart from weights."""
    name = "mobilenet-cifar10"
    with FRAMEWORKS[framework].backend().open(plan(name, framework, train=train), load(name)) as session:
        before = arrays(session)
        for _ in range(2):
            session.step()
        session.synchronize()
        after = arrays(session)
    assert set(before) == set(after)
    parts: dict[str, list[bool]] = {"head": [], "weights": [], "statistics": []}
    for key in before:
        statistic = any(word in key for word in ("running_", "moving_"))
        part = "statistics" if statistic else "weights" if "features." in key else "head"
        parts[part].append(before[key] != after[key])
    assert all(len(set(part)) == 1 for part in parts.values()), parts
    return {part: values[0] for part, values in parts.items()}


def arrays(session: Any) -> dict[str, int]:
    """A checksum of each array of a session's model, but for counters and random states."""
    model = session.recipe.model
    if hasattr(model, "variables"):
        found = {v.path: np.asarray(v) for v in model.variables if "seed" not in v.path}
    elif hasattr(model, "state_dict"):
        found = {k: v.numpy() for k, v in model.state_dict().items() if "num_batches" not in k}
    else:
        from mlx.utils import tree_flatten

        found = {k: np.array(v) for k, v in tree_flatten(model.parameters())}
    return {key: zlib.crc32(np.ascontiguousarray(value).tobytes()) for key, value in found.items()}


def write_weights(folder: Path) -> None:
    """Random weights and statistics of PyTorch's own modules, as safetensors, and as both kinds of .pth."""
    import torch
    from safetensors.numpy import save_file

    from metalmark.workloads.vision import on_torch

    torch.manual_seed(3)
    for architecture in SIZES:
        module = on_torch.backbone(BACKBONES[architecture], {"weights": "none"})
        state = module.state_dict()
        for name, tensor in state.items():
            if tensor.ndim == 1 and tensor.is_floating_point():
                tensor.mul_(torch.rand_like(tensor) + 0.5) if tensor.any() else tensor.normal_(std=0.1)
            elif tensor.ndim == 4:
                tensor.mul_(torch.rand(len(tensor), 1, 1, 1) + 0.5)
            assert name.startswith(("conv1", "bn1", "layer", "features")), name
        state["fc.weight"] = torch.zeros(10, 3)  # a top, to be left alone
        save_file({name: tensor.numpy() for name, tensor in state.items()}, folder / f"{architecture}.safetensors")
        if architecture == "mobilenet_v2":
            torch.save(state, folder / "zip.pth")
            torch.save(state, folder / "legacy.pth", _use_new_zipfile_serialization=False)


def pth_is_read_as_torch_reads_it(folder: Path) -> bool:
    import torch

    from metalmark.workloads import weights

    for name in ("zip.pth", "legacy.pth"):
        ours, theirs = weights.read_pth(folder / name), torch.load(folder / name, weights_only=True)
        assert list(ours) == list(theirs)
        assert all(np.array_equal(array, theirs[key].numpy()) for key, array in ours.items())
    return True


def flops() -> dict[str, tuple[float, float]]:
    """Forward work of a sample as PyTorch counts it and as we do, at 32 pixels and at the published size."""
    import torch
    from torch.utils.flop_counter import FlopCounterMode

    found = {}
    for name in WORKLOADS.values():
        workload = load(name)
        published = next(p.default for p in workload.params if p.name == "pixels")
        for pixels in (32, published):
            params = parameters(name, pixels=pixels, batch_size=1)
            recipe = workload.recipe("torch", params)
            batch = recipe.prepare(workload.batch(params, np.random.default_rng(0)))
            with FlopCounterMode(display=False) as counter, torch.no_grad():
                recipe.model.eval()(torch.from_numpy(batch.inputs[0]))
            assert workload.flops is not None
            found[f"{name} {pixels}"] = (float(counter.get_total_flops()), workload.flops(params))
    return found


def keep_to_the_cpu(framework: str) -> None:
    """All of this is the CPU's, and TensorFlow can't hide a GPU any more once it has computed something."""
    if framework == "tensorflow":
        import tensorflow as tf

        tf.config.set_visible_devices([], "GPU")
    elif framework == "mlx":
        from mlx import core as mx

        mx.set_default_device(mx.cpu)


def main(framework: str, folder: Path) -> None:
    keep_to_the_cpu(framework)
    answer: dict[str, Any] = {}
    if framework == "torch":
        import torch

        torch.set_num_threads(1)
        write_weights(folder)
        answer["pth"] = pth_is_read_as_torch_reads_it(folder)
        answer["flops"] = flops()
    mine = {arch: name for arch, name in WORKLOADS.items() if framework in load(name).info.frameworks}
    for architecture in mine:
        for pixels in sizes(framework, architecture):
            made = features(framework, architecture, pixels, str(folder / f"{architecture}.safetensors"))
            np.save(folder / f"{framework}-{architecture}-{pixels}.npy", made)
    # JAX shares its layers with TensorFlow, and both compile a whole network's backward pass for longer than all the
    # rest of this takes: what they share is looked at once, and what Keras itself promises not at all.
    if framework != "jax":
        answer["counts"] = {name: counts(framework, name) for name in mine.values()}
        trains = ("head",) if framework == "tensorflow" else ("head", "all")
        answer["moved"] = {train: moved(framework, train) for train in trains}
    (folder / f"{framework}.json").write_text(json.dumps(answer))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
