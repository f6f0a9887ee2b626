"""Scripts of Keras and MLX that show a difference with the framework alone. Those of PyTorch: test_diagnose.py."""

from __future__ import annotations

import ast
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from msgspec.structs import replace

from metalmark.backends.catalog import FRAMEWORKS
from metalmark.model.parity import FaultDiagnosis, Quantity
from metalmark.model.plan import DeviceKind, Dtype, Settings
from metalmark.parity.diagnose import write_repro
from metalmark.parity.networks import LayerPart, NetworkParts, ParameterPart, TensorPart
from metalmark.parity.repro import MOST_LINES, scripts
from metalmark.parity.scripts import Setting
from tests.parity.test_diagnose import make_inquiry, make_plan, make_row

IMAGES = TensorPart(shape=(4, 16, 16, 3), dtype="float32")
VECTORS = TensorPart(shape=(4, 1568), dtype="float32")
DROPOUTS = {"jax": "keras.layers.Dropout(rate=0.25)", "mlx": "nn.Dropout(p=0.25)"}
MLX_PARTS = NetworkParts(
    version="0.32.4",
    chain=(
        LayerPart(name="layers.0", text="nn.Conv2d(3, 32, kernel_size=(3, 3), stride=(1, 1), padding=(0, 0), "
                  "dilation=1, groups=1, bias=True)", given=IMAGES),
        LayerPart(name="layers.1", text="nn.ReLU()"),
        LayerPart(name="layers.2", text="nn.MaxPool2d(kernel_size=(2, 2), stride=(2, 2), padding=(0, 0))"),
        LayerPart(name="layers.3", text="partial(mx.flatten, start_axis=1)"),
        LayerPart(name="layers.4", text="nn.Linear(input_dims=1568, output_dims=10, bias=True)", given=VECTORS),
    ),
    failing=LayerPart(name="layers.4", text="nn.Linear(input_dims=1568, output_dims=10, bias=True)", given=VECTORS),
    loss="partial(nn.losses.cross_entropy, reduction='mean')",
    outputs=TensorPart(shape=(4, 10), dtype="float32"), targets=TensorPart(shape=(4,), dtype="int32", high=10),
    parameter=ParameterPart(
        shape=(10, 1568), size=0.1, gradient_size=1e-6, optimizer="optimizers.Adam(learning_rate=0.001)"
    ),
)  # fmt: skip
KERAS_PARTS = replace(
    MLX_PARTS,
    version="0.10.2 with Keras 3.15.1",
    chain=(
        LayerPart(name="layers.0", text="keras.layers.Conv2D(filters=32, kernel_size=(3, 3), activation='relu')",
                  given=IMAGES),
        LayerPart(name="layers.2", text="keras.layers.MaxPooling2D()"),
        LayerPart(name="layers.3", text="keras.layers.Flatten()"),
        LayerPart(name="layers.4", text="keras.layers.Dense(units=10, dtype='float32')", given=VECTORS),
    ),
    failing=LayerPart(name="layers.4", text="keras.layers.Dense(units=10, dtype='float32')", given=VECTORS),
    loss="keras.losses.SparseCategoricalCrossentropy(from_logits=True)",
    parameter=ParameterPart(
        shape=(10, 1568), size=0.1, gradient_size=1e-6, optimizer="keras.optimizers.Adam(learning_rate=0.001)"
    ),
)  # fmt: skip
IMPORTED = {
    "tensorflow": {"os", "keras", "numpy", "tensorflow"},
    "jax": {"os", "keras", "numpy", "jax"},
    "mlx": {"os", "functools", "mlx.core", "mlx", "mlx.utils", "numpy"},
}
DEVICES = {"tensorflow": ("CPU:0", "GPU:0"), "jax": ("TFRT_CPU_0", "cuda:0"), "mlx": ("cpu", "gpu:0")}
FAULTS = {
    "keras": """
    import keras
    right = keras.layers.Dense.call
    def call(self, inputs, training=None):
        return right(self, inputs) * (1.3 if self.compute_dtype == "bfloat16" else 1)
    keras.layers.Dense.call = call
""",
    "mlx": """
    from mlx import core, nn
    right = nn.Linear.__call__
    nn.Linear.__call__ = lambda self, x: right(self, x) * (1.3 if x.dtype == core.bfloat16 else 1)
""",
}


@pytest.mark.parametrize(
    "settings",
    [
        Settings(),
        Settings(compile=True, dtype=Dtype.BFLOAT16),
        Settings(dtype=Dtype.TF32),
        Settings(environment="XLA_FLAGS=--xla_gpu_enable_latency_hiding_scheduler=true"),
    ],
    ids=["plain", "compiled bfloat16", "tf32", "a variable"],
)
@pytest.mark.parametrize("quantity", [q for q in Quantity if q not in (Quantity.CURVE, Quantity.ACCURACY)])
@pytest.mark.parametrize("framework", IMPORTED)
def test_scripts_are_short_and_import_the_framework_alone(
    framework: str, quantity: Quantity, settings: Settings
) -> None:
    parts = MLX_PARTS if framework == "mlx" else KERAS_PARTS
    if quantity is Quantity.DROPOUT:
        assert parts.failing is not None
        dropout = DROPOUTS.get(framework, DROPOUTS["jax"])
        parts = replace(parts, failing=replace(parts.failing, text=dropout, rate=0.25))
    row = make_row(quantity, "layers.4.weight" if quantity not in (Quantity.LOSS, Quantity.PREDICTION) else "")
    there, here = DEVICES[framework]
    plan = make_plan("conv256", framework, DeviceKind.GPU, settings)
    made = list(scripts(Setting(plan=plan, reference_device=there, device=here, suspect=row), parts, ""))
    assert made
    if quantity in (Quantity.GRADIENT, Quantity.LOSS):
        assert made[-1].what == "the whole network with its loss"
    for script in made:
        tree = ast.parse(script.text)
        imported = {
            alias.name if isinstance(node, ast.Import) else node.module
            for node in ast.walk(tree)
            if isinstance(node, ast.Import | ast.ImportFrom)
            for alias in node.names
        }
        assert imported <= IMPORTED[framework]
        assert script.text.count("\n") < MOST_LINES
        assert max(map(len, script.text.splitlines())) <= 120
        if settings.environment and framework != "mlx":
            assert script.text.index('os.environ["XLA_FLAGS"] = "--xla_gpu') < script.text.index("\nimport keras")


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("framework", "name", "parameter"),
    [
        ("tensorflow", "sequential/dense/kernel", "kernel"),
        ("jax", "sequential/dense/kernel", "kernel"),
        ("mlx", "layers.0.weight", "weight"),
    ],
)
def test_a_script_shows_a_fault_of_real_layers(
    framework: str, name: str, parameter: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Layers whose products are wrong in bfloat16, in scripts only: the layer alone shows it in a fresh process, and
    without the fault the same script shows none."""
    missing = FRAMEWORKS[framework].missing()
    if missing:
        pytest.skip(f"{framework} is not installed: no package {missing[0]!r}")
    if framework == "mlx" and shutil.which("g++") is None:
        pytest.skip("MLX compiles for the CPU with g++, which is not here")
    fault = FAULTS["mlx" if framework == "mlx" else "keras"]
    (tmp_path / "sitecustomize.py").write_text(f"import os, sys\nif sys.orig_argv[-1].endswith('fault.py'):{fault}")
    for variable, value in FRAMEWORKS[framework].environment(Settings()).items():
        monkeypatch.setenv(variable, value)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, [str(tmp_path), os.environ.get("PYTHONPATH")])))
    placed_on = DEVICES[framework][0]
    plan = make_plan("mnist-mlp", framework, DeviceKind.CPU, Settings(dtype=Dtype.BFLOAT16), batch_size=16)
    inquiry = make_inquiry(plan, replace(make_row(Quantity.GRADIENT, name), sigma=1e-2), placed_on=placed_on)
    inquiry = inquiry._replace(checked=replace(inquiry.checked, reference_placed_on=placed_on))
    path = tmp_path / "shown.py"
    found = write_repro(inquiry, FaultDiagnosis(), path)
    assert path.read_text() == found.repro, found.notes
    right = subprocess.run([sys.executable, path], capture_output=True, text=True, check=False)
    assert right.returncode == 0, right.stdout + right.stderr
    assert f"gradient of {parameter}: the relative difference is 0.0" in right.stdout
