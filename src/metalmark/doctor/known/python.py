"""Installing and importing: wheels, architectures, NumPy, protobuf, OpenMP."""

from __future__ import annotations

from metalmark.doctor.known.base import KnownError, Weight

ARM64_PYTHON = "brew install python@3.12  # with the Homebrew in /opt/homebrew"
WHICH_PYTHON = 'python -c "import platform; print(platform.python_version(), platform.machine())"'

ERRORS = (
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
