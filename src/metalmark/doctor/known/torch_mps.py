"""PyTorch and MLX on Metal."""

from __future__ import annotations

from metalmark.doctor.known.base import KnownError, Weight

APPLE = "https://developer.apple.com/metal/pytorch/"
METAL_ERRORS = "https://developer.apple.com/documentation/metal/mtlcommandbuffererror-swift.struct"
MPS_VARIABLES = "https://docs.pytorch.org/docs/stable/mps_environment_variables.html"

ERRORS = (
    KnownError(
        name="nnpack-mismatch",
        pattern=r"Mismatched Tensor types in NNPack convolutionOutput",
        happened="A convolution's input and its weights are on different devices, or of different dtypes.",
        change="Move both to the same device and dtype. PYTORCH_ENABLE_NNPACK, which articles recommend here, is read "
        "by no PyTorch: setting it does nothing.",
        fix=("model = model.to(device)", "images = images.to(device, dtype=torch.float32)"),
        source="https://github.com/facebookresearch/BenchMARL/pull/230",
    ),
    KnownError(
        name="mps-placeholder",
        pattern=r"Placeholder (storage|buffer|tensor) (has not been allocated|is empty)|is on cpu but expected on mps",
        happened="A tensor given to an operation on Metal is still on the CPU: the model, a batch, a mask or a buffer "
        "that the model makes in forward().",
        change="Move the model and everything of the batch; make new tensors on the device of an old one.",
        fix=(
            'model.to("mps")',
            'batch = {name: value.to("mps") for name, value in batch.items()}',
            "mask = torch.zeros(shape, device=x.device)",
        ),
        source="https://github.com/pytorch/pytorch/issues/130790",
    ),
    KnownError(
        name="mps-out-of-memory",
        pattern=r"MPS backend out of memory",
        happened="PyTorch reached its own limit on Metal's memory (max allowed in the message), which is 1.7 times "
        "what Metal recommends unless a variable says otherwise. The other allocations in it are not PyTorch's.",
        change="Make the batch smaller or use bfloat16; drop references before torch.mps.empty_cache(); close what "
        "else uses the GPU. PYTORCH_MPS_HIGH_WATERMARK_RATIO=0.0, which the message names, takes the limit away: the "
        "Mac then swaps, and may stop answering.",
        fix=("del outputs, loss", "torch.mps.empty_cache()"),
        source=MPS_VARIABLES,
    ),
    KnownError(
        name="mps-watermark",
        pattern=r"invalid (low|high) watermark ratio",
        happened="One of PyTorch's two memory limits on Metal was set, and the other's default (low 1.4, high 1.7) "
        "does not go with it: low may not be above high, and high not above 2.",
        change="Set both, low below high, or neither.",
        fix=("export PYTORCH_MPS_HIGH_WATERMARK_RATIO=1.0", "export PYTORCH_MPS_LOW_WATERMARK_RATIO=0.8"),
        source="https://github.com/kohya-ss/sd-scripts/issues/603",
    ),
    KnownError(
        name="mps-fallback-value",
        pattern=r"stoi: (no conversion|out of range)",
        happened="PYTORCH_ENABLE_MPS_FALLBACK is set to something that is not a number, such as true, false or "
        "nothing. PyTorch reads it as a number while it is imported, and the process ends where that fails.",
        change="Set it to 1 or 0, or take it away.",
        fix=("unset PYTORCH_ENABLE_MPS_FALLBACK", "export PYTORCH_ENABLE_MPS_FALLBACK=1"),
        source="https://github.com/pytorch/pytorch/blob/main/aten/src/ATen/mps/MPSFallback.mm",
    ),
    KnownError(
        name="tensor-to-numpy",
        pattern=r"can't convert (mps|cuda|xpu|xla)(:\d+)? device type tensor to numpy",
        happened="NumPy can read the host's memory only, and the tensor is on the GPU.",
        change="Bring it back first; detach it where it still has a gradient.",
        fix=("array = tensor.detach().cpu().numpy()",),
        source="https://docs.pytorch.org/docs/stable/generated/torch.Tensor.numpy.html",
    ),
    KnownError(
        name="mps-float64",
        pattern=r"Cannot convert a MPS Tensor to float64|MPS framework doesn't support float64"
        r"|Trying to convert (Complex)?Double to the MPS backend|Double(Tensor)? is not supported on MPS",
        happened="Metal has no float64 and no complex128. Arrays of NumPy are float64 unless told otherwise, and "
        "PYTORCH_ENABLE_MPS_FALLBACK does not help.",
        change="Make it float32 before it goes to the device.",
        fix=('x = torch.as_tensor(array, dtype=torch.float32).to("mps")', "model = model.float()"),
        source="https://github.com/pytorch/pytorch/issues/122602",
    ),
    KnownError(
        name="mps-dtype",
        pattern=r"Trying to convert (?!Double|ComplexDouble)\w+ to the MPS backend"
        r"|(MPS )?BFloat16 (is not supported on MPS|is only supported on MacOS)",
        happened="This dtype does not exist on Metal, or not on this macOS: bfloat16 needs macOS 14.",
        change="Use float32 or float16 there, or update macOS.",
        fix=("model = model.to(dtype=torch.float16)", "sw_vers -productVersion"),
        source="https://github.com/pytorch/pytorch/issues/139386",
    ),
    KnownError(
        name="mps-operator",
        pattern=r"operator '[\w:.]{1,80}' is not currently (implemented|supported) (for|on) the MPS (device|backend)"
        r"(?! and will fall)",
        happened="This PyTorch has no Metal kernel for this operation.",
        change="Update PyTorch, which gains some in each release; or let this one run on the CPU. The variable must "
        "be set before torch is imported, and each such step then copies to the CPU and back: measure it.",
        fix=("pip install --upgrade torch", "PYTORCH_ENABLE_MPS_FALLBACK=1 python train.py"),
        source="https://github.com/pytorch/pytorch/issues/77764",
    ),
    KnownError(
        name="mps-fallback",
        pattern=r"on the MPS backend and will fall\s*back to run on the CPU",
        happened="PYTORCH_ENABLE_MPS_FALLBACK let an operation run on the CPU, with a copy there and back in each "
        "step.",
        change="Find out what it costs: time the step with and without that operation. If it is much, replace the "
        "operation or keep that part of the model on the CPU.",
        source=MPS_VARIABLES,
        weight=Weight.REMARK,
    ),
    KnownError(
        name="mps-unavailable",
        pattern=r"PyTorch is not linked with support for mps|Torch not compiled with MPS enabled"
        r"|The MPS backend is supported on MacOS \d",
        happened="This PyTorch can't use Metal here: it is an x86_64 build (under Rosetta), or macOS is too old for "
        "it. The release that the message names can be too low: PyTorch 2.5 needs macOS 13, 2.9 needs 14, 2.15 needs "
        "15.",
        change="Look at what this Python is; if it says x86_64, install an arm64 one. Else update macOS, or take an "
        "older PyTorch.",
        fix=(
            'python -c "import platform; print(platform.machine(), platform.mac_ver()[0])"',
            "brew install python@3.12  # with the Homebrew in /opt/homebrew",
        ),
        source="https://github.com/pytorch/pytorch/issues/164943",
    ),
    KnownError(
        name="mps-missing-module",
        pattern=r"module 'torch(\.backends)?' has no attribute 'mps'",
        happened="This PyTorch is older than its Metal backend: torch.backends.mps came with 1.12, torch.mps with 2.0.",
        change="Update PyTorch; on an x86_64 Python 2.2.2 is the newest that there is.",
        fix=("pip install --upgrade torch",),
        source=APPLE,
    ),
    KnownError(
        name="mps-autocast",
        pattern=r"unsupported autocast device_type '?mps|autocast .{0,60}device type of 'mps'.{0,20}not supported",
        happened="Autocast on Metal came with PyTorch 2.5 for float16 and 2.6 for bfloat16; this one is older.",
        change="Update PyTorch, or cast the model yourself.",
        fix=("pip install --upgrade torch",),
        source="https://github.com/pytorch/pytorch/pull/99272",
    ),
    KnownError(
        name="mps-buffer-size",
        pattern=r"Invalid buffer size: [\d.]+\s*[KMGT]i?B"
        r"|(total bytes of NDArray|product of dimension sizes) > 2\*\*3[12]"
        r"|\[metal::malloc\] Attempting to allocate|is larger than currently supported by the MPS backend",
        happened="One tensor is larger than Metal lets a buffer or an array be.",
        change="Make it smaller: a smaller batch, a shorter sequence, attention that is not written out "
        "(scaled_dot_product_attention), or the work in pieces.",
        source="https://github.com/pytorch/pytorch/issues/141909",
    ),
    KnownError(
        name="metal-command-memory",
        pattern=r"kIOGPUCommandBufferCallbackErrorOutOfMemory|Command buffer execution failed: Insufficient Memory",
        happened="Metal itself ran out of memory in the middle of the work: the limit of PyTorch or MLX was above "
        "what the machine had left.",
        change="Make the batch smaller, or set the framework's limit below the machine's, so that it says so in time.",
        fix=(
            "export PYTORCH_MPS_HIGH_WATERMARK_RATIO=1.0 PYTORCH_MPS_LOW_WATERMARK_RATIO=0.8",
            "mx.set_memory_limit(int(0.7 * memory_bytes))  # MLX",
        ),
        source=METAL_ERRORS,
    ),
    KnownError(
        name="metal-assertion",
        pattern=r"MPS\w{1,120}\.mm:\d+: failed assertion|failed assertion .{0,120}(MPS|MTL|NDArray)",
        happened="Apple's own library stopped the process: a shape or layout that its kernel does not take. Python "
        "can't catch it.",
        change="Update macOS and PyTorch first. Then find the operation: run on the CPU, or halve the model until it "
        "passes; contiguous() on its input often avoids it.",
        fix=("x = x.contiguous()",),
        source="https://github.com/pytorch/pytorch/issues/112998",
    ),
    KnownError(
        name="mps-element-types",
        pattern=r"'mps\.\w+' op requires the same element type for all operands"
        r"|input types 'tensor<[^'\n]{1,60}' and 'tensor<[^'\n]{1,60}' are not broadcast compatible",
        happened="An operation on Metal got tensors of two dtypes, such as float32 and float16. CUDA would have made "
        "them one; Apple's compiler ends the process, which Python can't catch.",
        change="Cast both to one dtype; under mixed precision also what is made outside of autocast: learning rates, "
        "masks, optimiser states. Newer PyTorch casts in more places.",
        fix=("x = x.to(weight.dtype)", "pip install --upgrade torch"),
        source="https://github.com/pytorch/pytorch/issues/143932",
    ),
    KnownError(
        name="mps-convolution-size",
        pattern=r"Output channels > 65536 not supported at the MPS device",
        happened="A convolution's result is longer than 65536 in one of its sides. The message says channels, but the "
        "length of a sound counts too. macOS before 15.1 can't do it.",
        change="Update macOS and PyTorch; until then compute that layer on the CPU, or the input in pieces. "
        "PYTORCH_ENABLE_MPS_FALLBACK, which some releases name here, did not help in all of them.",
        fix=("sw_vers -productVersion", 'y = conv.cpu()(x.cpu()).to("mps")'),
        source="https://github.com/pytorch/pytorch/issues/144445",
    ),
    KnownError(
        name="mps-adaptive-pool",
        pattern=r"Adaptive pool MPS: (input|output) sizes must be divisible",
        happened="Adaptive pooling on Metal takes only sizes that divide each other; networks such as VGG on small or "
        "odd images do not give it such.",
        change="Pool on the CPU, or resize the images so that the sizes divide.",
        fix=('y = torch.nn.functional.adaptive_avg_pool2d(x.cpu(), size).to("mps")',),
        source="https://github.com/pytorch/pytorch/issues/143864",
    ),
    KnownError(
        name="metal-timeout",
        pattern=r"kIOGPUCommandBufferCallbackError(Timeout|ImpactingInteractivity|Hang)|Caused GPU (Timeout|Hang) Error"
        r"|Command buffer execution failed: Impacting Interactivity",
        happened="macOS ended the GPU's work because one piece of it ran for too long: it kept the screen from being "
        "drawn, or waited for something that did not come. That is no lack of memory.",
        change="Make a step smaller: a smaller batch or a shorter sequence; in MLX evaluate more often, so that each "
        "piece of work is shorter. Close what else uses the GPU.",
        fix=("mx.eval(loss, model.parameters())  # MLX: within the step, not after many",),
        source=f"{METAL_ERRORS}/timeout",
    ),
    KnownError(
        name="metal-after-fork",
        pattern=r"XPC_ERROR_CONNECTION_INVALID",
        happened="Metal's compiler was called in a process that had been forked: the connection to it does not "
        "outlive a fork.",
        change="Start processes by spawn, and use Metal in the parent only; servers that fork their workers need one "
        "that does not.",
        fix=('torch.multiprocessing.set_start_method("spawn")', "DataLoader(..., num_workers=0)"),
        source="https://github.com/xorbitsai/inference/issues/469",
    ),
    KnownError(
        name="mps-pin-memory",
        pattern=r"'pin_memory' argument is set as true but not supported on MPS",
        happened="The Mac's GPU shares the memory of the CPU: this PyTorch does not pin it, and where a newer one does "
        "(2.14), it is no faster yet.",
        change="Leave it off on Metal. It is a warning only.",
        fix=('DataLoader(..., pin_memory=device.type == "cuda")',),
        source="https://github.com/pytorch/pytorch/pull/181720",
        weight=Weight.REMARK,
    ),
)
