"""Versions with known wrong results on a device the user has."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from metalmark.doctor.check import Finding, Severity, check, issue
from metalmark.doctor.scene import Scene, at_least, older


@dataclass(frozen=True, kw_only=True)
class KnownBug:
    """A bug from version `first` up to, but not in, `fixed`; None: from the beginning, or not fixed yet."""

    framework: str = "torch"
    device: str = "mps"
    title: str
    when: str
    avoid: tuple[str, ...]
    source: tuple[str, ...]
    first: str | None = None
    fixed: str | None = None
    severity: Severity = Severity.NOTE
    """A warning where an update ends it; a note where it depends on what is computed."""
    unless: tuple[str, str] | None = None
    """A variable and the value that avoids it."""

    def concerns(self, scene: Scene) -> bool:
        version = scene.version(self.framework)
        if version is None or not scene.present(self.framework, self.device):
            return False
        if self.unless is not None and scene.environment.get(self.unless[0]) == self.unless[1]:
            return False
        begun = self.first is None or at_least(version, self.first)
        return begun and (self.fixed is None or older(version, self.fixed))


BUGS = (
    KnownBug(
        title="PyTorch on MPS: addcdiv on non-contiguous tensors was wrong",
        when="optimisers such as Adam step wrongly on parameters that are not contiguous, without a message",
        avoid=('pip install --upgrade "torch>=2.4"',),
        source=issue("pytorch/pytorch", 118115, 124442),
        fixed="2.4",
        severity=Severity.WARNING,
    ),
    KnownBug(
        title="PyTorch on MPS: matrix products that sum over 32767 elements or more are wrong on M1 and M2",
        when="a product sums over that many: large flattened inputs, large vocabularies. 2.14 mends plain products "
        "(mm, linear), not batched ones (bmm, einsum)",
        avoid=(
            'pip install --upgrade "torch>=2.14"',
            "Compute a batched product in two halves, or compare one with the CPU's.",
        ),
        source=issue("pytorch/pytorch", 193487, 195163),
        first="2.7",
    ),
    KnownBug(
        title="PyTorch on MPS: adaptive max pooling is wrong where the sizes do not divide",
        when="AdaptiveMaxPool gets an input whose side is no multiple of the output's",
        avoid=('pip install --upgrade "torch>=2.14"',),
        source=issue("pytorch/pytorch", 190064, 190065),
        fixed="2.14",
    ),
    KnownBug(
        title="PyTorch on MPS: BatchNorm2d's backward pass is wrong in channels_last",
        when="a model with BatchNorm2d trains in torch.channels_last: gradients are wrong, or on newer macOS the step "
        "fails at a view",
        avoid=("model.to(memory_format=torch.contiguous_format)",),
        source=issue("pytorch/pytorch", 175189, 188371),
        fixed="2.14",
    ),
    KnownBug(
        title="PyTorch on MPS: convolutions train up to 30 times slower in channels_last",
        when="a network with Conv2d trains in torch.channels_last",
        avoid=("model.to(memory_format=torch.contiguous_format)",),
        source=issue("pytorch/pytorch", 193349, 193623),
        fixed="2.15",
    ),
    KnownBug(
        title="PyTorch on MPS: non_blocking copies can corrupt data",
        when='the source of tensor.to("mps", non_blocking=True) is changed or freed before the copy has run',
        avoid=("Leave non_blocking out.",),
        source=issue("pytorch/pytorch", 139550, 189690),
        fixed="2.13",
    ),
    KnownBug(
        title="PyTorch on MPS: compiled training of convolutions can be 9 times slower",
        when="torch.compile trains a network with convolutions",
        avoid=("export TORCHINDUCTOR_LAYOUT_OPTIMIZATION=0",),
        source=issue("pytorch/pytorch", 192551, 193623),
        first="2.13",
        fixed="2.15",  # mended three days after 2.14 was cut
        unless=("TORCHINDUCTOR_LAYOUT_OPTIMIZATION", "0"),
    ),
    KnownBug(
        framework="tensorflow",
        title="TensorFlow on Metal: training has diverged where the CPU's does not",
        when="several kinds of networks were reported; Random* augmentation layers fail outright",
        avoid=('with tf.device("CPU"): train a few steps and compare the losses',),
        source=(*issue("tensorflow/tensorflow", 62361, 92686, 53505), *issue("keras-team/tf-keras", 140)),
    ),
)


@check(
    "known-wrong-results",
    "A version with known wrong results, or known slowness, on a device that is here",
    *tuple(dict.fromkeys(source for bug in BUGS for source in bug.source)),
)
def known_bugs(scene: Scene) -> Iterator[Finding]:
    """Metal's kernels are younger than the CPU's, and some computed wrongly in silence. Those that are known for the
    installed version and the device it has are listed with what sets them off: speed without a look at the results
    means nothing."""
    for bug in BUGS:
        if bug.concerns(scene):
            yield Finding(
                severity=bug.severity,
                title=bug.title,
                evidence=f"{bug.framework} {scene.version(bug.framework)} with {bug.device}",
                why=f"It bites when {bug.when}. See {', '.join(bug.source)}.",
                fix=bug.avoid,
            )
