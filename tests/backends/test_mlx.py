"""What is MLX's own: Adam as the other frameworks mean it, and the compiler it needs on the CPU."""

from __future__ import annotations

import subprocess
import sys

import pytest

from metalmark.backends.catalog import FRAMEWORKS
from metalmark.workloads.catalog import load, shown_names

pytestmark = pytest.mark.skipif(bool(FRAMEWORKS["mlx"].missing()), reason="mlx is not installed")

FIRST_STEP = """
import sys
from mlx import core as mx, nn
from metalmark.workloads.catalog import load
for name in sys.argv[1:]:
    workload = load(name)
    size = {"bert": "tiny", "gpt": "nano"}.get(name, "")
    params = {param.name: param.default for param in workload.params} | {"size": size, "pixels": 32}
    optimizer = workload.recipe("mlx", params).optimizer()
    layer = nn.Linear(3, 3)
    # Zeros, which a decay of weights leaves where they are.
    before = layer.weight = mx.zeros((3, 3))
    optimizer.update(layer, {"weight": mx.ones((3, 3)), "bias": mx.ones(3)})
    moved = float((before - layer.weight).mean())
    rate = float(optimizer.learning_rate)
    # Without the correction of its bias, which MLX leaves out unless asked, Adam's first step is 3.2 times as long.
    assert abs(moved / rate - 1) < 0.02, (name, moved, rate)
print("good")
"""


def test_adams_first_step_is_as_long_as_in_other_frameworks() -> None:
    workloads = [name for name in shown_names() if "mlx" in load(name).build]
    assert len(workloads) >= 5
    run = subprocess.run([sys.executable, "-c", FIRST_STEP, *workloads], capture_output=True, text=True, check=False)
    assert run.stdout.strip() == "good", run.stderr[-2000:]


COMPILER = """
import shutil
from metalmark.backends import mlx
from metalmark.errors import UnsupportedError
from metalmark.model.run import Absent
def refuses(system, compiler, tools):
    mlx.platform.system = lambda: system
    mlx.shutil.which = lambda name: compiler
    mlx.run_tool = lambda argv, timeout_s: tools
    try:
        mlx._require_compiler("cpu")
    except UnsupportedError as error:
        assert "xcode-select --install" in error.hint
        return True
    return False
missing = Absent("xcode-select ended with status 2")
assert refuses("Darwin", "/usr/bin/g++", missing), "this one only asks to install the tools"
assert not refuses("Darwin", "/usr/bin/g++", "/Library/Developer/CommandLineTools")
assert not refuses("Darwin", "/opt/homebrew/bin/g++", missing)
assert not refuses("Linux", "/usr/bin/g++", missing)
assert refuses("Linux", None, missing)
print("good")
"""


def test_a_compiler_that_only_asks_to_be_installed_is_none() -> None:
    run = subprocess.run([sys.executable, "-c", COMPILER], capture_output=True, text=True, check=False)
    assert run.stdout.strip() == "good", run.stderr[-2000:]
