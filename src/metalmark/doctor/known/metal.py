"""Metal: PyTorch, MLX and TensorFlow on a Mac's GPU."""

from __future__ import annotations

from metalmark.doctor.known import KnownError, Weight

APPLE = "https://developer.apple.com/metal/pytorch/"
METAL_ERRORS = "https://developer.apple.com/documentation/metal/mtlcommandbuffererror-swift.struct"
MPS_VARIABLES = "https://docs.pytorch.org/docs/stable/mps_environment_variables.html"
PLUGIN = "https://developer.apple.com/metal/tensorflow-plugin/"
PIN = 'pip install "tensorflow==2.19.*" tensorflow-metal==1.2.0  # Python 3.9 to 3.12, arm64'

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
    KnownError(
        name="tensorflow-metal-symbol",
        pattern=r"libmetal_plugin\.dylib[^\n]{0,40} symbol not found|__ZN3tsl8internal10LogMessage",
        happened="tensorflow-metal was built against another TensorFlow: a function it calls is no longer there. "
        "1.0.1 and 1.1.0 load with TensorFlow 2.15 to 2.17, 1.2.0 with 2.15 to 2.19.",
        change="Install a pair that loads.",
        fix=(PIN,),
        source="https://github.com/tensorflow/tensorflow/issues/84167",
    ),
    KnownError(
        name="tensorflow-metal-rpath",
        pattern=r"Library not loaded: @rpath/(_pywrap_tensorflow|libtensorflow)",
        happened="tensorflow-metal looks for a library that TensorFlow 2.20 and later no longer have under that name. "
        "No release of the plugin loads with them.",
        change="Install a pair that loads; or remove the plugin and train on the CPU.",
        fix=(PIN, "pip uninstall tensorflow-metal"),
        source="https://github.com/tensorflow/tensorflow/pull/126380",
    ),
    KnownError(
        name="xla-on-metal",
        pattern=r"could not find registered platform with id|Could not find (registered )?compiler for platform METAL",
        happened="XLA has no compiler for Metal, and something asked for it: jit_compile=True, which Keras 3 may "
        "choose by itself, or TF_XLA_FLAGS.",
        change="Turn it off where the model is compiled.",
        fix=("model.compile(..., jit_compile=False)", "unset TF_XLA_FLAGS"),
        source="https://github.com/tensorflow/tensorflow/issues/58988",
    ),
    KnownError(
        name="tensorflow-metal-random",
        pattern=r"No registered 'RngReadAndSkip' OpKernel",
        happened="tensorflow-metal lacks RngReadAndSkip, which RandomFlip, RandomRotation and the other Random* "
        "layers and tf.random.Generator use.",
        change="Augment in the input pipeline, on the CPU, instead of in the model.",
        fix=(
            'with tf.device("/CPU:0"):',
            "    dataset = dataset.map(lambda x, y: (augment(x, training=True), y))",
        ),
        source="https://github.com/tensorflow/tensorflow/issues/53505",
    ),
    KnownError(
        name="tensorflow-operator",
        pattern=r"No registered '(?!RngReadAndSkip)\w{1,80}' OpKernel for '?GPU",
        happened="TensorFlow has no kernel of this operation for this GPU, or none for this dtype.",
        change="Run that part on the CPU, or let TensorFlow move what it must.",
        fix=('with tf.device("/CPU:0"): ...', "tf.config.set_soft_device_placement(True)"),
        source=PLUGIN,
    ),
    KnownError(
        name="tensorflow-too-late",
        pattern=r"(Visible|Physical|Virtual) devices cannot be modified after being initialized"
        r"|(Intra|Inter) op parallelism cannot be modified after initialization",
        happened="TensorFlow's runtime was already running: the first tensor or the first list of logical devices "
        "starts it, and after that devices, memory growth and threads stay as they are.",
        change="Call it right after the import, before any tensor or model; in a notebook, restart the kernel first.",
        fix=(
            "import tensorflow as tf",
            'gpus = tf.config.list_physical_devices("GPU")',
            'tf.config.set_visible_devices(gpus[:1], "GPU")',
        ),
        source="https://www.tensorflow.org/api_docs/python/tf/config/set_visible_devices",
    ),
    KnownError(
        name="mlcompute",
        pattern=r"No module named '?tensorflow\.python\.compiler\.mlcompute",
        happened="The program is for Apple's fork of 2021, tensorflow_macos with ML Compute, which has been given up.",
        change="Remove the import and set_mlc_device; the plugin offers Metal as an ordinary GPU. The fork's evaluate "
        "and predict could return chance: do not go back to it.",
        fix=(PIN,),
        source="https://github.com/apple/tensorflow_macos",
    ),
    KnownError(
        name="jax-metal-memory-space",
        pattern=r"default_memory_space is not supported",
        happened="jax-metal's last release (0.1.1, October 2024) does not work with JAX 0.5.1 and later.",
        change="Remove it: JAX then runs on the CPU, and MLX is the framework of that kind for Metal. Or stay with "
        "the last JAX that it loads with.",
        fix=("pip uninstall jax-metal", 'pip install "jax==0.5.0" "jaxlib==0.5.0" jax-metal==0.1.1'),
        source="https://github.com/jax-ml/jax/issues/27062",
    ),
    KnownError(
        name="jax-metal-plugin",
        pattern=r"jax_plugins[./]metal_plugin|Unable to initialize backend 'METAL'|The plugin PJRT API version is"
        r"|failed to legalize operation '(mhlo|stablehlo|chlo)\.",
        happened="JAX's plugin for another device does not fit this JAX, or lacks the operation. Apple's, jax-metal, "
        "has had no release since October 2024.",
        change="On a Mac, remove it and let JAX use the CPU; elsewhere, install the plugin of JAX's own version.",
        fix=("pip uninstall jax-metal", "JAX_PLATFORMS=cpu python train.py"),
        source="https://pypi.org/project/jax-metal/",
    ),
    KnownError(
        name="jax-metal-experimental",
        pattern=r"Platform 'METAL' is experimental",
        happened="jax-metal is loaded. It says of itself that not all of JAX may be correct on it, and it is no "
        "longer maintained.",
        change="Check results against the CPU before you trust them, or remove it.",
        fix=("JAX_PLATFORMS=cpu python train.py", "pip uninstall jax-metal"),
        source="https://pypi.org/project/jax-metal/",
        weight=Weight.REMARK,
    ),
    KnownError(
        name="tensorflow-slow-optimiser",
        pattern=r"v2\.11\+ optimizer `\S+` runs slowly on M1/M2|known slowdown when using v2\.11\+ Keras optimizers",
        happened="Keras' optimisers since 2.11 are made of many small operations, which the plugin runs up to three "
        "times slower than the one kernel of the old ones. Some releases fall back to those by themselves.",
        change="Take the legacy optimiser; Keras 3 has none, there it is Keras 2 (tf_keras) or patience.",
        fix=("tf.keras.optimizers.legacy.Adam()",),
        source="https://github.com/tensorflow/tensorflow/issues/59438",
        weight=Weight.REMARK,
    ),
)
