"""Off the GPU: loaders and their processes, memory of the host, tensors on two devices; Python and its packages."""

from __future__ import annotations

from metalmark.doctor.known import KnownError, Weight

LOADER = "https://docs.pytorch.org/docs/stable/data.html"
SHARING = "https://docs.pytorch.org/docs/stable/multiprocessing.html#sharing-strategies"
SPAWN = "https://docs.python.org/3/library/multiprocessing.html#the-spawn-and-forkserver-start-methods"
ARM64_PYTHON = "brew install python@3.12  # with the Homebrew in /opt/homebrew"
WHICH_PYTHON = 'python -c "import platform; print(platform.python_version(), platform.machine())"'

ERRORS = (
    KnownError(
        name="too-many-open-files",
        pattern=r"Too many open files|\[Errno 24\]|received 0 items of ancdata",
        happened="The process holds as many files as it may: a Mac's shell allows 256. Each loader worker, and on "
        "Linux each tensor that waits in a queue, takes some.",
        change="Raise the limit in the shell that starts the program, or use fewer workers. On Linux the sharing "
        "strategy file_system needs fewer; on a Mac it is the only one there is, so setting it does nothing.",
        fix=("ulimit -S -n 4096", 'torch.multiprocessing.set_sharing_strategy("file_system")  # Linux'),
        source=SHARING,
    ),
    KnownError(
        name="shared-memory",
        pattern=r"dataloader's workers are out of shared memory"
        r"|DataLoader worker \(pid[^)\n]{0,80}\) is killed by signal: Bus error"
        r"|unable to (write to|open|mmap|allocate) [^\n]{0,60}</?torch_\w+>?[^\n]{0,40}(No space left|Cannot allocate)",
        happened="Loader workers hand batches over through /dev/shm, and it is full. A container has 64 MB unless "
        "told otherwise.",
        change="Give the container more, or use fewer workers and less prefetch.",
        fix=(
            "df -h /dev/shm",
            "docker run --ipc=host ...",
            "docker run --shm-size=8g ...",
            "DataLoader(..., num_workers=0)",
        ),
        source="https://github.com/pytorch/pytorch#docker-image",
    ),
    KnownError(
        name="spawn-main-guard",
        pattern=r"before the current process has finished its bootstrapping phase",
        happened="Processes start by spawn here (as always on a Mac): each new one imports your script, which then "
        "starts processes itself.",
        change="Put what the script does under the guard.",
        fix=('if __name__ == "__main__":', "    main()"),
        source=SPAWN,
    ),
    KnownError(
        name="spawn-pickle",
        pattern=r"Can't (pickle|get) local object|Can't pickle <(function|class)|cannot pickle '[\w.]+' object"
        r"|Can't get attribute '\w+' on <module '__main__'",
        happened="What a new process needs is sent to it pickled, and this can't be: a lambda, a function inside a "
        "function, an open file, or something defined in a notebook.",
        change="Define it at the top of a module that can be imported, and open files in the worker; or use no "
        "workers.",
        fix=("DataLoader(..., num_workers=0)",),
        source=SPAWN,
    ),
    KnownError(
        name="mixed-devices",
        pattern=r"Expected all tensors to be on the same device"
        r"|slow_conv2d_forward_\w+: input\(device=\S+ and weight\(device=\S+ must be on the same device"
        r"|Input type \([\w.]+\) and (weight|bias) type \([\w.]+\) should be the same",
        happened="An operation got tensors from two devices, or of two dtypes.",
        change="Move the model once, each batch in the loop, and make new tensors where the old ones are.",
        fix=("model.to(device)", "x, y = x.to(device), y.to(device)", "torch.zeros(n, device=x.device, dtype=x.dtype)"),
        source="https://docs.pytorch.org/docs/stable/tensor_attributes.html#torch.device",
    ),
    KnownError(
        name="mixed-dtypes",
        pattern=r"mat1 and mat2 (must|to) have the same dtype|expected scalar type \w+ but found \w+"
        r"|Expected query, key, and value to have the same dtype",
        happened="An operation got tensors of two dtypes: mostly a model in half precision and data, or a part of the "
        "model, in float32; or float64 from NumPy.",
        change="Give all one dtype, or run the step under autocast, which casts where it must.",
        fix=(
            "x = x.to(next(model.parameters()).dtype)",
            "with torch.autocast(device.type, dtype=torch.bfloat16): loss = step(model, batch)",
        ),
        source="https://docs.pytorch.org/docs/stable/amp.html",
    ),
    KnownError(
        name="generator-device",
        pattern=r"Expected a '[\w:]+' (device type for generator|generator device) but found '[\w:]+'",
        happened="Random numbers were asked for on one device from a generator of another: mostly a DataLoader that "
        "shuffles after torch.set_default_device.",
        change="Leave the default device at the CPU and move batches in the loop; or give the loader a generator of "
        "the default device.",
        fix=(
            'torch.set_default_device("cpu")',
            "DataLoader(..., shuffle=True, generator=torch.Generator(device=torch.get_default_device()))",
        ),
        source="https://github.com/pytorch/pytorch/issues/110820",
    ),
    KnownError(
        name="half-precision-device",
        pattern=r"fp16 mixed precision requires a GPU|bf16 mixed precision requires PyTorch"
        r"|FP16 Mixed precision training [^\n]{0,160}can only be used on CUDA",
        happened="Accelerate, or the Trainer on it, knows this half precision on CUDA and a few others only, and this "
        "device is none of them: Metal, or no GPU at all.",
        change="Turn it off, or load the model in that dtype yourself and train without a scaler.",
        fix=("TrainingArguments(..., fp16=False, bf16=False)", 'Accelerator(mixed_precision="no")'),
        source="https://github.com/huggingface/accelerate/issues/3718",
    ),
    KnownError(
        name="bfloat16-to-numpy",
        pattern=r"Got unsupported ScalarType (BFloat16|Float8\w*)",
        happened="NumPy has no bfloat16.",
        change="Make it float32 first.",
        fix=("array = tensor.detach().float().cpu().numpy()",),
        source="https://github.com/pytorch/pytorch/issues/110285",
    ),
    KnownError(
        name="gradient-to-numpy",
        pattern=r"Can't call numpy\(\) on Tensor that requires grad",
        happened="The tensor is part of a graph of gradients, which NumPy would not follow.",
        change="Detach it.",
        fix=("array = tensor.detach().cpu().numpy()",),
        source="https://docs.pytorch.org/docs/stable/generated/torch.Tensor.numpy.html",
    ),
    KnownError(
        name="weights-only",
        pattern=r"Weights only load failed",
        happened="torch.load takes plain weights only since 2.6, and this file holds other objects too.",
        change="If you trust where the file comes from, allow what it names; loading it whole can run any code in it.",
        fix=("torch.serialization.add_safe_globals([TheClass])", "torch.load(path, weights_only=False)"),
        source="https://docs.pytorch.org/docs/stable/notes/serialization.html",
    ),
    KnownError(
        name="view-on-strides",
        pattern=r"view size is not compatible with input tensor's size and stride",
        happened="The tensor does not lie in memory in the order that view() needs: channels_last, a transpose or a "
        "slice.",
        change="Use reshape, which copies where it must.",
        fix=("x = x.reshape(x.shape[0], -1)",),
        source="https://docs.pytorch.org/docs/stable/generated/torch.Tensor.view.html",
    ),
    KnownError(
        name="host-out-of-memory",
        pattern=r"DefaultCPUAllocator: (can't allocate|not enough) memory|std::bad_alloc"
        r"|^(numpy\S*\.)?_?(Array)?MemoryError\b"
        r"|Unable to allocate [\d.]+ [KMGT]iB for an array|Out of memory: Killed process|oom-kill"
        r"|^(zsh: )?Killed(: 9)?$",
        happened="The machine's, or the container's, memory ran out: in your process, or the kernel ended it for that.",
        change="Load less at once (memory-mapped files, fewer workers: each has its own copy of what it changes), or "
        "a smaller batch.",
        fix=("metalmark doctor", "DataLoader(..., num_workers=2, prefetch_factor=2)"),
        source=LOADER,
    ),
    KnownError(
        name="disk-full",
        pattern=r"No space left on device|\[Errno 28\]",
        happened="The disk is full, or the quota: often the caches of data sets and models, or the temporary folder.",
        change="See which, make room, or move the cache.",
        fix=("df -h . /tmp ~", "export HF_HOME=/other/disk TORCH_HOME=/other/disk TMPDIR=/other/disk"),
        source="https://docs.pytorch.org/docs/stable/hub.html#where-are-my-downloaded-models-saved",
        weight=Weight.CONSEQUENCE,
    ),
    KnownError(
        name="loader-worker-died",
        pattern=r"DataLoader worker \(pid[^\n]{0,200}?\) (exited unexpectedly|is killed by signal: (?!Bus error))"
        r"|BrokenProcessPool|Pin memory thread exited unexpectedly",
        happened="A loader's worker process died. \"Killed\" is the kernel's answer to too little memory; otherwise "
        "its own error is further up, or was never printed.",
        change="Run without workers: the error then shows in your own process.",
        fix=("DataLoader(..., num_workers=0)", "sudo dmesg | grep -i oom"),
        source=LOADER,
        weight=Weight.CONSEQUENCE,
    ),
    KnownError(
        name="wrong-architecture",
        pattern=r"incompatible architecture \(have '[\w,]+', need '|mach-o, but wrong architecture",
        happened="A package was built for another processor than this Python runs as: an x86_64 Python under Rosetta "
        "with arm64 packages, or the other way round.",
        change="Use an arm64 Python, and install its packages anew in a fresh environment.",
        fix=(WHICH_PYTHON, ARM64_PYTHON, "python3.12 -m venv .venv"),
        source="https://developer.apple.com/documentation/apple-silicon/about-the-rosetta-translation-environment",
    ),
    KnownError(
        name="rosetta-avx",
        pattern=r"compiled to use (SSE4\.\d|AVX\w*|FMA)[^\n]{0,40} instructions, but these aren't available",
        happened="An x86_64 TensorFlow runs where AVX is missing: under Rosetta, or on a very old or emulated "
        "processor.",
        change="On Apple Silicon use an arm64 Python and install TensorFlow again.",
        fix=(WHICH_PYTHON, ARM64_PYTHON),
        source="https://github.com/tensorflow/tensorflow/issues/58339",
    ),
    KnownError(
        name="illegal-instruction",
        pattern=r"Illegal instruction(: 4)?( \(core dumped\))?$|SIGILL",
        happened="The processor met an instruction that it does not have: a wheel for a newer processor, or an x86_64 "
        "one under Rosetta.",
        change="Look at which processor Python runs as; install a build for it.",
        fix=(WHICH_PYTHON,),
        source="https://github.com/tensorflow/tensorflow/issues/58339",
    ),
    KnownError(
        name="no-wheel",
        pattern=r"No matching distribution found for (torch|torchvision|tensorflow|tensorflow-metal|tensorflow-macos"
        r"|tensorflow-cpu|jaxlib|jax-metal|mlx)\b",
        happened="There is no wheel of it for this Python and this processor. On x86_64 Macs (and under Rosetta) "
        "PyTorch ends at 2.2.2 and TensorFlow at 2.16.2; tensorflow-metal has none for Python 3.13; MLX needs an "
        "arm64 Mac or Linux.",
        change="Look at what this Python is, and use an arm64 one that the package has wheels for.",
        fix=(WHICH_PYTHON, ARM64_PYTHON),
        source="https://pypi.org/project/tensorflow-metal/#files",
    ),
    KnownError(
        name="wheel-not-supported",
        pattern=r"is not a supported wheel on this platform",
        happened="The wheel's name says another Python, system or processor than this one.",
        change="Let pip choose by name instead of a file, or compare the name with the tags that pip takes.",
        fix=("python -m pip debug --verbose", WHICH_PYTHON),
        source="https://packaging.python.org/en/latest/specifications/platform-compatibility-tags/",
    ),
    KnownError(
        name="externally-managed",
        pattern=r"externally-managed-environment",
        happened="This Python belongs to Homebrew or to the system, which does not let pip change it.",
        change="Make an environment of your own.",
        fix=("python3 -m venv .venv", ". .venv/bin/activate"),
        source="https://peps.python.org/pep-0668/",
    ),
    KnownError(
        name="numpy-abi",
        pattern=r"compiled using NumPy 1\.x cannot be run in NumPy 2|numpy\.dtype size changed|_ARRAY_API not found"
        r"|compiled against (API|ABI) version 0x|numpy\.core\.multiarray failed to import"
        r"|RuntimeError: Numpy is not available",
        happened="A package was built against another generation of NumPy than the one installed.",
        change="Update that package; until it has a release for NumPy 2, stay with NumPy 1.",
        fix=("pip install --upgrade PACKAGE", 'pip install "numpy<2"'),
        source="https://numpy.org/doc/stable/numpy_2_0_migration_guide.html",
    ),
    KnownError(
        name="numpy-removed",
        pattern=r"module 'numpy' has no attribute '\w+'|`np\.\w+` was (removed in the NumPy|a deprecated alias)",
        happened="The program, or a package, uses a name that newer NumPy no longer has.",
        change="Update the package; in your own code write the builtin type (float for np.float) or the new name.",
        fix=("ruff check --select NPY --fix .",),
        source="https://numpy.org/doc/stable/release/1.24.0-notes.html",
    ),
    KnownError(
        name="protobuf-version",
        pattern=r"Descriptors cannot (not )?be created directly|incompatible Protobuf Gencode/Runtime versions"
        r"|'MessageFactory' object has no attribute 'GetPrototype'",
        happened="A package brings code that another release of protobuf generated: older than the installed one can "
        "read, or newer.",
        change="Update the package whose _pb2 file the traceback names; else pin protobuf. The variable "
        "PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION=python hides it and is slow.",
        fix=("pip check", 'pip install "protobuf>=3.20.3,<4"  # where the message says 3.20'),
        source="https://protobuf.dev/news/2022-05-06/#python-updates",
    ),
    KnownError(
        name="openmp-twice",
        pattern=r"OMP: Error #15|lib[io]*omp\w*\.\w+,? but found \S+ already initialized",
        happened="Two packages each brought their own OpenMP runtime into this process; on a Mac often conda's beside "
        "pip's.",
        change="Install both from the same place, in a fresh environment. KMP_DUPLICATE_LIB_OK=TRUE only hides it: "
        "the message itself warns of crashes and wrong results.",
        fix=("python3 -m venv .venv", ". .venv/bin/activate", "pip install torch numpy scikit-learn"),
        source="https://github.com/pytorch/pytorch/issues/78490",
    ),
    KnownError(
        name="libomp-missing",
        pattern=r"Library not loaded: \S*libomp\.dylib",
        happened="The package expects OpenMP's runtime, which macOS does not have.",
        change="Install it.",
        fix=("brew install libomp",),
        source="https://formulae.brew.sh/formula/libomp",
    ),
    KnownError(
        name="glibc-too-old",
        pattern=r"version `(GLIBC|GLIBCXX|CXXABI)_[\d.]+' not found",
        happened="The package was built for a newer Linux than this one. MLX needs glibc 2.35.",
        change="Use a newer distribution or its container, or an older release of the package.",
        fix=("ldd --version",),
        source="https://ml-explore.github.io/mlx/build/html/install.html",
    ),
    KnownError(
        name="torch-compile-python",
        pattern=r"(torch\.compile|Dynamo) is not (yet )?supported on Python",
        happened="This PyTorch can't compile under this Python.",
        change="Use an older Python, a newer PyTorch, or no compilation.",
        fix=("pip install --upgrade torch",),
        source="https://docs.pytorch.org/docs/stable/torch.compiler_troubleshooting.html",
    ),
    KnownError(
        name="triton-missing",
        pattern=r"Cannot find a working triton installation|No module named 'triton'",
        happened="torch.compile makes its GPU kernels with Triton, which is not installed: it comes with PyTorch's "
        "CUDA build for Linux only.",
        change="Install that build, or leave compilation out.",
        fix=("pip install --force-reinstall torch",),
        source="https://github.com/pytorch/pytorch/issues/136361",
    ),
    KnownError(
        name="certificates",
        pattern=r"CERTIFICATE_VERIFY_FAILED",
        happened="Python could not check the server's certificate. The Python of python.org for the Mac brings no "
        "certificates until its installer's script has run; behind a company's proxy its own is missing.",
        change="Run the script, or install certifi; do not turn the check off.",
        fix=(
            '"/Applications/Python 3.12/Install Certificates.command"',
            'export SSL_CERT_FILE="$(python -m certifi)"',
        ),
        source="https://github.com/python/cpython/issues/80525",
    ),
    KnownError(
        name="native-library",
        pattern=r"Failed to load the native TensorFlow runtime|DLL load failed while importing",
        happened="A compiled part of the package could not be loaded; the lines above it name the file and the reason.",
        change="Read the first error above this one. Then reinstall the package in a fresh environment.",
        fix=("python3 -m venv .venv", ". .venv/bin/activate"),
        source="https://www.tensorflow.org/install/errors",
        weight=Weight.CONSEQUENCE,
    ),
)
