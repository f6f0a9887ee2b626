"""NVIDIA GPUs: the driver, CUDA's libraries, and the frameworks on them."""

from __future__ import annotations

from metalmark.doctor.known import KnownError, Weight

CUDA_NOTES = "https://docs.pytorch.org/docs/stable/notes/cuda.html"
INSTALL_TORCH = "https://pytorch.org/get-started/locally/"
INSTALL_TENSORFLOW = "https://www.tensorflow.org/install/pip"
DRIVERS = "https://docs.nvidia.com/deploy/cuda-compatibility/"
XID = "https://docs.nvidia.com/deploy/xid-errors/"
_LIBRARIES = r"lib(cudart|cudnn\w*|cublas\w*|cufft|curand|cusolver|cusparse\w*|nvrtc|nccl|cupti|nvJitLink)"

ERRORS = (
    KnownError(
        name="gpu-out-of-memory",
        pattern=r"CUDA out of memory|CUDA error: out of memory|CUDA_ERROR_OUT_OF_MEMORY|OOM when allocating tensor"
        r"|RESOURCE_EXHAUSTED: (Out of memory|Failed to allocate)",
        happened="The GPU's memory is full: with this process's tensors, or with another process's.",
        change="See who uses it. Then make the batch smaller, use bfloat16, or recompute activations; keep losses as "
        "numbers (loss.item()), not as tensors that hold their graph. TensorFlow and JAX take most of the memory when "
        "they start, so two of them do not share a GPU.",
        fix=(
            "nvidia-smi",
            "export PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True  # where much is reserved but unallocated",
            "export XLA_PYTHON_CLIENT_PREALLOCATE=false  # JAX",
            "export TF_FORCE_GPU_ALLOW_GROWTH=true  # TensorFlow",
        ),
        source=f"{CUDA_NOTES}#memory-management",
    ),
    KnownError(
        name="cuda-driver-too-old",
        pattern=r"NVIDIA driver on your system is too old|CUDA driver version is insufficient for CUDA runtime version"
        r"|the provided PTX was compiled with an unsupported toolchain",
        happened="The framework was built for a newer CUDA than the driver can run.",
        change="Update the driver, or install a build of the framework for the CUDA that nvidia-smi names at its top.",
        fix=("nvidia-smi", f"Choose that CUDA at {INSTALL_TORCH} and run the line it gives."),
        source=DRIVERS,
    ),
    KnownError(
        name="cuda-forward-compatibility",
        pattern=r"forward compatibility was attempted on non supported HW",
        happened="A compatibility package of CUDA (libcuda of a newer driver) is found before the driver's own, and "
        "this GPU may not use it; or the driver was updated and the old one is still loaded.",
        change="Take the compat folder out of LD_LIBRARY_PATH; after an update of the driver, restart the machine.",
        fix=("echo $LD_LIBRARY_PATH", "ldconfig -p | grep libcuda.so"),
        source=f"{DRIVERS}forward-compatibility.html",
    ),
    KnownError(
        name="nvml-mismatch",
        pattern=r"Driver/library version mismatch",
        happened="The driver was updated while the old one is still in the kernel.",
        change="Restart the machine.",
        fix=("cat /proc/driver/nvidia/version", "sudo reboot"),
        source="https://github.com/NVIDIA/nvidia-container-toolkit/issues/394",
    ),
    KnownError(
        name="cuda-no-kernel-image",
        pattern=r"no kernel image is available for execution on the device"
        r"|CUDA capability sm_\d+ is not compatible with the current PyTorch",
        happened="The framework, or an extension, was built without code for this GPU: the GPU is newer, or too old "
        "for this release.",
        change="Install the build for your GPU: the newest CUDA for a new GPU, an older release for an old one; build "
        "extensions again with TORCH_CUDA_ARCH_LIST set.",
        fix=(
            'python -c "import torch; print(torch.cuda.get_device_capability(), torch.cuda.get_arch_list())"',
            f"Choose the CUDA for your GPU at {INSTALL_TORCH} and run the line it gives.",
        ),
        source=INSTALL_TORCH,
    ),
    KnownError(
        name="cuda-device-assert",
        pattern=r"device-side assert triggered|Assertion `t >= 0 && t < n_classes`|srcIndex < srcSelectDimSize"
        r"|index out of bounds\"? failed",
        happened="A kernel met an index that is out of range: a label not below the number of classes, or a token not "
        "below the size of the vocabulary. Kernels run later than the line that started them, so the line shown may "
        "be innocent, and the process can't use the GPU any more.",
        change="Run the same batch on the CPU, where the message names the index; or make each launch wait.",
        fix=("assert labels.min() >= 0 and labels.max() < num_classes", "CUDA_LAUNCH_BLOCKING=1 python train.py"),
        source=f"{CUDA_NOTES}#asynchronous-execution",
    ),
    KnownError(
        name="cuda-illegal-access",
        pattern=r"an illegal memory access was encountered|CUDA_ERROR_ILLEGAL_ADDRESS|CUDA error: misaligned address"
        r"|unspecified launch failure",
        happened="A kernel touched memory that is not its own: mostly a custom kernel, an extension built for another "
        "version, or indices out of range. Everything after it on this GPU fails too.",
        change="Start a fresh process with each launch waiting, to see the true line; then compute-sanitizer names "
        "the kernel. Leave out compiled and custom kernels one by one.",
        fix=("CUDA_LAUNCH_BLOCKING=1 python train.py", "compute-sanitizer python train.py"),
        source=f"{CUDA_NOTES}#asynchronous-execution",
    ),
    KnownError(
        name="cublas-handle",
        pattern=r"CUBLAS_STATUS_(NOT_INITIALIZED|ALLOC_FAILED)|failed to create cublas handle",
        happened="cuBLAS could not start. Nearly always the GPU's memory is full; sometimes an earlier kernel failed, "
        "or a label was out of range.",
        change="Look at the memory first, then run the same batch on the CPU.",
        fix=("nvidia-smi", "CUDA_LAUNCH_BLOCKING=1 python train.py"),
        source="https://github.com/EleutherAI/lm-evaluation-harness/issues/1689",
    ),
    KnownError(
        name="cublas-failed",
        pattern=r"CUBLAS_STATUS_(EXECUTION_FAILED|INTERNAL_ERROR|INVALID_VALUE|NOT_SUPPORTED|ARCH_MISMATCH)",
        happened="A matrix product was refused: shapes or a dtype that this GPU's cuBLAS does not take, an index out "
        "of range before it, or another CUDA's cuBLAS loaded in its place.",
        change="Run the same batch on the CPU. If it passes there, take CUDA's folders out of LD_LIBRARY_PATH, so "
        "that the framework's own libraries are loaded.",
        fix=("CUDA_LAUNCH_BLOCKING=1 python train.py", "unset LD_LIBRARY_PATH"),
        source="https://docs.nvidia.com/cuda/cublas/#cublasstatus-t",
    ),
    KnownError(
        name="cudnn-version",
        pattern=r"Loaded runtime CuDNN library: [\d.]+ but source was compiled with|cuDNN version incompatibility",
        happened="Another cuDNN than the one the framework was built with is found first.",
        change="Take the other out of LD_LIBRARY_PATH, or bring it to the version that the message names.",
        fix=("pip list | grep -i cudnn", "unset LD_LIBRARY_PATH"),
        source="https://github.com/tensorflow/tensorflow/issues/60913",
    ),
    KnownError(
        name="cudnn-handle",
        pattern=r"CUDNN_STATUS_(NOT_INITIALIZED|INTERNAL_ERROR|ALLOC_FAILED|EXECUTION_FAILED)"
        r"|Could not create cudnn handle|DNN library (initialization failed|is not found)|No DNN in stream executor",
        happened="cuDNN could not start or failed: the GPU's memory is full, or its libraries do not fit the driver.",
        change="Look at the memory; let TensorFlow take it as it needs it; then reinstall the framework with its own "
        "CUDA.",
        fix=(
            "nvidia-smi",
            "export TF_FORCE_GPU_ALLOW_GROWTH=true",
            'pip install --force-reinstall "tensorflow[and-cuda]"',
        ),
        source=INSTALL_TENSORFLOW,
    ),
    KnownError(
        name="cudnn-no-algorithm",
        pattern=r"Unable to find a valid cuDNN algorithm to run convolution"
        r"|GET was unable to find an engine to execute",
        happened="cuDNN found no way to compute a convolution: too little memory for its workspace, another release's "
        "libraries, or a dtype that this GPU does not have.",
        change="Try a much smaller batch first. If it fails too, reinstall the framework without LD_LIBRARY_PATH.",
        fix=("nvidia-smi", "unset LD_LIBRARY_PATH", "pip install --force-reinstall torch"),
        source="https://github.com/unit8co/darts/issues/1919",
    ),
    KnownError(
        name="cuda-library-missing",
        pattern=_LIBRARIES + r"[\w.-]*\.so[.\d]*'?[:;] (dlerror: )?[^\n]{0,120}cannot open shared object file"
        r"|Could not load dynamic library '" + _LIBRARIES,
        happened="A library of CUDA that the framework was built with is not installed, or not where it looks.",
        change="Install the framework together with its CUDA libraries.",
        fix=('pip install "tensorflow[and-cuda]"', 'pip install "jax[cuda12]"', "pip install --force-reinstall torch"),
        source=INSTALL_TENSORFLOW,
    ),
    KnownError(
        name="cuda-libraries-mixed",
        pattern=r"undefined symbol: (__nvJitLink|cublas|cudnn|nccl|cusparse)\w*",
        happened="Libraries of two releases of CUDA are mixed: one calls into another that is older.",
        change="Take the system's CUDA out of LD_LIBRARY_PATH and reinstall the framework, so that its own set is "
        "whole.",
        fix=("unset LD_LIBRARY_PATH", "pip install --force-reinstall torch"),
        source="https://github.com/pytorch/pytorch/issues/111469",
    ),
    KnownError(
        name="cuda-not-in-torch",
        pattern=r"Torch not compiled with CUDA enabled",
        happened="This is PyTorch's CPU build, or a Mac, where there is no CUDA; and the program asks for cuda by "
        "name.",
        change="With an NVIDIA GPU, install the CUDA build. Without one, let the program choose what is there.",
        fix=(
            f"Choose CUDA at {INSTALL_TORCH} and run the line it gives, with --force-reinstall.",
            "device = torch.accelerator.current_accelerator() or torch.device('cpu')  # PyTorch 2.6+",
        ),
        source=INSTALL_TORCH,
    ),
    KnownError(
        name="cuda-checkpoint",
        pattern=r"Attempting to deserialize object on (a )?CUDA device",
        happened="The checkpoint was saved from a GPU, and there is none here, or none of that number.",
        change="Say where it shall go when it is loaded.",
        fix=('state = torch.load(path, map_location="cpu")',),
        source="https://docs.pytorch.org/docs/stable/generated/torch.load.html",
    ),
    KnownError(
        name="nvidia-driver-missing",
        pattern=r"Found no NVIDIA driver on your system|couldn't communicate with the NVIDIA driver"
        r"|no CUDA-capable device is detected|RuntimeError: No CUDA GPUs are available"
        r"|could not select device driver \"\" with capabilities: \[\[gpu\]\]",
        happened="No NVIDIA driver answers: none is installed, it does not fit the kernel, CUDA_VISIBLE_DEVICES hides "
        "the GPU, or the container was started without it.",
        change="Try nvidia-smi outside the container, then inside; start the container with the GPU.",
        fix=("nvidia-smi", "echo $CUDA_VISIBLE_DEVICES", "docker run --gpus all ..."),
        source="https://docs.nvidia.com/datacenter/cloud-native/container-toolkit/latest/install-guide.html",
    ),
    KnownError(
        name="cuda-device-number",
        pattern=r"CUDA error: invalid device ordinal|Invalid device id",
        happened="The program asks for a GPU whose number does not exist here; CUDA_VISIBLE_DEVICES also renumbers "
        "them from 0.",
        change="Ask for one that is there.",
        fix=('python -c "import torch; print(torch.cuda.device_count())"', "echo $CUDA_VISIBLE_DEVICES"),
        source=CUDA_NOTES,
    ),
    KnownError(
        name="cuda-busy",
        pattern=r"all CUDA-capable devices are busy or unavailable|CUDA-capable device\(s\) is/are busy",
        happened="The GPU lets in one process at a time (exclusive mode), and another has it; or it is in a bad state.",
        change="See who uses it, and wait or end that process yourself; an administrator can change the mode.",
        fix=("nvidia-smi", "nvidia-smi --query-gpu=compute_mode --format=csv"),
        source="https://github.com/pytorch/pytorch/issues/3871",
    ),
    KnownError(
        name="cuda-in-fork",
        pattern=r"Cannot re-initialize CUDA in forked subprocess",
        happened="CUDA was used before the process forked, mostly by a Dataset that touches the GPU in a loader's "
        "worker.",
        change="Keep CUDA out of the Dataset and move batches in the training loop; or start workers with spawn.",
        fix=('DataLoader(..., multiprocessing_context="spawn")',),
        source="https://docs.pytorch.org/docs/stable/notes/multiprocessing.html",
    ),
    KnownError(
        name="cuda-graph-capture",
        pattern=r"operation not permitted when stream is capturing"
        r"|operation failed due to a previous error during capture",
        happened="Something inside a CUDA graph's capture needs the host: .item(), a print, a copy to the CPU, a new "
        "allocation, or a loader thread that uses the GPU.",
        change="Take it out of the captured step, and run the step a few times on a side stream before the capture.",
        source=f"{CUDA_NOTES}#cuda-graphs",
    ),
    KnownError(
        name="nccl-missing",
        pattern=r"Distributed package doesn't have NCCL built in",
        happened="This PyTorch has no NCCL: it is a CPU build, or a Mac's.",
        change="Use gloo there; NCCL needs Linux and PyTorch's CUDA build.",
        fix=('torch.distributed.init_process_group("gloo")',),
        source="https://docs.pytorch.org/docs/stable/distributed.html",
    ),
    KnownError(
        name="nccl-failed",
        pattern=r"NCCL error|ncclUnhandledCudaError|ncclSystemError|ncclInternalError|ncclRemoteError"
        r"|Watchdog caught collective operation timeout",
        happened="Processes that train together lost each other: one died or is far behind, or the network between "
        "them is not the one NCCL chose. The first process that failed has the true error.",
        change="Read the log of each rank, the earliest first; then let NCCL say what it does.",
        fix=("export NCCL_DEBUG=INFO", "export NCCL_SOCKET_IFNAME=eth0  # the interface that they share"),
        source="https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting.html",
        weight=Weight.CONSEQUENCE,
    ),
    KnownError(
        name="xla-tools-missing",
        pattern=r"libdevice not found|Couldn't (get|invoke) ptxas|Can't find libdevice directory",
        happened="XLA needs CUDA's compiler files (libdevice, ptxas), and they are not installed or not found.",
        change="Install them with the framework, or say where CUDA lies.",
        fix=('pip install "tensorflow[and-cuda]"', "export XLA_FLAGS=--xla_gpu_cuda_data_dir=/usr/local/cuda"),
        source="https://github.com/tensorflow/tensorflow/issues/58681",
    ),
    KnownError(
        name="gpu-hardware",
        pattern=r"uncorrectable ECC error|GPU has fallen off the bus|NVRM: Xid",
        happened="The GPU itself reported a fault: memory, power, heat or its slot.",
        change="Read its counters, restart the machine, and have it looked at if it comes back.",
        fix=("nvidia-smi -q -d ECC,TEMPERATURE,POWER", "sudo dmesg | grep -i xid"),
        source=XID,
    ),
    KnownError(
        name="cuda-unknown",
        pattern=r"CUDA unknown error - this may be due to an incorrectly set\s*up environment"
        r"|CUDA error: unknown error",
        happened="The driver did not start for this process: often after the machine slept, or CUDA_VISIBLE_DEVICES "
        "was changed while the program ran.",
        change="Load the driver's module again, or restart; set CUDA_VISIBLE_DEVICES before the program starts.",
        fix=("sudo modprobe -r nvidia_uvm && sudo modprobe nvidia_uvm",),
        source="https://github.com/pytorch/pytorch/issues/43281",
        weight=Weight.CONSEQUENCE,
    ),
    KnownError(
        name="tensorflow-no-gpu",
        pattern=r"Cannot dlopen some GPU libraries|Could not find cuda drivers on your machine|failed call to cuInit",
        happened="TensorFlow found no GPU it can use, and goes on with the CPU. Without an NVIDIA GPU that is as it "
        "should be.",
        change="With one: install TensorFlow with its CUDA libraries, and look whether the driver answers.",
        fix=('pip install "tensorflow[and-cuda]"', "nvidia-smi"),
        source=INSTALL_TENSORFLOW,
        weight=Weight.REMARK,
    ),
)
