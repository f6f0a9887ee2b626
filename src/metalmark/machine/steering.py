"""Environment variables that steer a framework: which ones are read, recorded and examined."""

from collections.abc import Mapping

from metalmark.scrub import scrub

PREFIXES = (
    "BLIS_", "CUBLAS", "CUDA_", "CUDNN", "GOMP_", "HIP_VISIBLE_DEVICES", "JAX_", "KERAS_", "KMP_", "METAL_", "MKL_",
    "MLX_", "MTL_", "NUMEXPR_", "NVIDIA_TF32", "OMP_", "OPENBLAS_", "PJRT_", "PROTOCOL_BUFFERS_", "PYTORCH_", "TF_",
    "TORCH", "VECLIB_", "XLA_",
)  # fmt: skip
"""How their names begin; no others are read."""
OTHERS = ("TF_CLI", "TF_VAR")
"""Variables of another program, which share a prefix."""
_VALUE_CHARS = 2000


def steering_variables(variables: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that steer a framework, with paths removed from their values."""
    return {
        # A lone surrogate, which is how Python shows a byte that is not text, can't go into JSON.
        name: scrub(value.encode("utf-8", "replace").decode())[:_VALUE_CHARS]
        for name, value in sorted(variables.items())
        if name.startswith(PREFIXES) and not name.startswith(OTHERS)
    }
