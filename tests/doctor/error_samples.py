"""For each known error a text as users paste it, written here after the frameworks' own words."""

from __future__ import annotations

TRACEBACK = """Traceback (most recent call last):
  File "/Users/someone/train.py", line 31, in <module>
    loss = step(model, batch)
  File "/Users/someone/.venv/lib/python3.11/site-packages/torch/nn/modules/conv.py", line 454, in _conv_forward
    return F.conv2d(input, weight, bias, self.stride)
"""

SAMPLES: dict[str, str] = {
    "nnpack-mismatch": TRACEBACK + "RuntimeError: Mismatched Tensor types in NNPack convolutionOutput",
    "mps-placeholder": TRACEBACK + "RuntimeError: Placeholder storage has not been allocated on MPS device!",
    "mps-out-of-memory": "RuntimeError: MPS backend out of memory (MPS allocated: 17.93 GB, other allocations: 384.00 "
    "KB, max allowed: 18.13 GB). Tried to allocate 256.00 MB on private pool. Use "
    "PYTORCH_MPS_HIGH_WATERMARK_RATIO=0.0 to disable upper limit for memory allocations (may cause system failure).",
    "mps-watermark": "RuntimeError: invalid low watermark ratio 1.4",
    "mps-fallback-value": "libc++abi: terminating due to uncaught exception of type std::invalid_argument: stoi: no "
    "conversion\nzsh: abort      python -c 'import torch'",
    "tensor-to-numpy": "TypeError: can't convert mps:0 device type tensor to numpy. Use Tensor.cpu() to copy the "
    "tensor to host memory first.",
    "mps-float64": "TypeError: Cannot convert a MPS Tensor to float64 dtype as the MPS framework doesn't support "
    "float64. Please use float32 instead.",
    "mps-dtype": "TypeError: Trying to convert Float8_e4m3fn to the MPS backend but it does not have support for that "
    "dtype.",
    "mps-operator": "NotImplementedError: The operator 'aten::_linalg_eigh.eigenvalues' is not currently implemented "
    "for the MPS device. If you want this op to be considered for addition please comment on the issue.",
    "mps-fallback": "train.py:12: UserWarning: The operator 'aten::nonzero' is not currently supported on the MPS "
    "backend and will fall back to run on the CPU. This may have performance implications.",
    "mps-unavailable": "RuntimeError: PyTorch is not linked with support for mps devices",
    "mps-missing-module": "AttributeError: module 'torch.backends' has no attribute 'mps'",
    "mps-autocast": "RuntimeError: User specified an unsupported autocast device_type 'mps'",
    "mps-buffer-size": "RuntimeError: Invalid buffer size: 24.00 GB",
    "metal-command-memory": "Error: command buffer exited with error status.\n\tThe Metal Performance Shaders "
    "operations encoded on it may not have completed.\n\tError:\n\t(null)\n\tInsufficient Memory "
    "(00000008:kIOGPUCommandBufferCallbackErrorOutOfMemory)",
    "metal-assertion": "/AppleInternal/Library/BuildRoots/MPSNDArrayConvolutionA14.mm:4352: failed assertion "
    "`destination kernel width and filter kernel width mismatch'\nzsh: abort      python train.py",
    "mps-element-types": "MPSGraphUtilities.mm:233:0: error: 'mps.multiply' op requires the same element type for all "
    "operands and results",
    "mps-convolution-size": TRACEBACK + "NotImplementedError: Output channels > 65536 not supported at the MPS device.",
    "mps-adaptive-pool": "RuntimeError: Adaptive pool MPS: input sizes must be divisible by output sizes. "
    "Non-divisible input sizes are not implemented on MPS device yet.",
    "metal-timeout": "libc++abi: terminating due to uncaught exception of type std::runtime_error: [METAL] Command "
    "buffer execution failed: Caused GPU Timeout Error (00000002:kIOGPUCommandBufferCallbackErrorTimeout).",
    "metal-after-fork": "python[16641:199671] Error getting visible function:\n (null) Compiler encountered "
    "XPC_ERROR_CONNECTION_INVALID (is the OS shutting down?)\n/MPSCore/Utility/MPSKernelDAG.mm:805: failed assertion "
    "`Error getting visible function'",
    "mps-pin-memory": "UserWarning: 'pin_memory' argument is set as true but not supported on MPS now, device pinned "
    "memory won't be used.",
    "tensorflow-metal-symbol": "tensorflow.python.framework.errors_impl.NotFoundError: "
    "dlopen(/Users/someone/.venv/lib/python3.11/site-packages/tensorflow-plugins/libmetal_plugin.dylib, 0x0006): "
    "Symbol not found: __ZN3tsl8internal10LogMessageC1EPKcii\n  Referenced from: <D2EF42E3> libmetal_plugin.dylib",
    "tensorflow-metal-rpath": "NotFoundError: "
    "dlopen(/Users/someone/.venv/lib/python3.12/site-packages/tensorflow-plugins/libmetal_plugin.dylib, 0x0006): "
    "Library not loaded: @rpath/_pywrap_tensorflow_internal.so",
    "xla-on-metal": "NotFoundError: Graph execution error:\ncould not find registered platform with id: "
    "0x10517f3e0\n\t [[{{node StatefulPartitionedCall}}]] [Op:__inference_one_step_on_iterator_1024]",
    "tensorflow-metal-random": "NotFoundError: No registered 'RngReadAndSkip' OpKernel for 'GPU' devices compatible "
    "with node {{node RngReadAndSkip}}\n\t.  Registered:  device='CPU'",
    "tensorflow-operator": "NotFoundError: No registered 'StatefulRandomBinomial' OpKernel for 'GPU' devices "
    "compatible with node {{node StatefulRandomBinomial}}",
    "tensorflow-too-late": "RuntimeError: Visible devices cannot be modified after being initialized",
    "mlcompute": "ModuleNotFoundError: No module named 'tensorflow.python.compiler.mlcompute'",
    "jax-metal-memory-space": "Platform 'METAL' is experimental and not all JAX functionality may be correctly "
    "supported!\njaxlib.xla_extension.XlaRuntimeError: UNIMPLEMENTED: default_memory_space is not supported.",
    "jax-metal-plugin": "<stdin>:1:0: error: failed to legalize operation "
    "'mhlo.cholesky'\njaxlib.xla_extension.XlaRuntimeError: UNKNOWN: compilation failed",
    "jax-metal-experimental": "WARNING:2024-11-02 10:11:12,391:jax._src.xla_bridge:967: Platform 'METAL' is "
    "experimental and not all JAX functionality may be correctly supported!",
    "tensorflow-slow-optimiser": "WARNING:absl:At this time, the v2.11+ optimizer `tf.keras.optimizers.Adam` runs "
    "slowly on M1/M2 Macs, please use the legacy Keras optimizer instead.",
    "gpu-out-of-memory": "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total "
    "capacity of 23.64 GiB of which 1.12 GiB is free. Of the allocated memory 21.02 GiB is allocated by PyTorch.",
    "cuda-driver-too-old": "RuntimeError: The NVIDIA driver on your system is too old (found version 11040). Please "
    "update your GPU driver.",
    "cuda-forward-compatibility": "UserWarning: CUDA initialization: Unexpected error from cudaGetDeviceCount(). "
    "Error 804: forward compatibility was attempted on non supported HW",
    "nvml-mismatch": "Failed to initialize NVML: Driver/library version mismatch\nNVML library version: 550.54",
    "cuda-no-kernel-image": "NVIDIA GeForce RTX 5090 with CUDA capability sm_120 is not compatible with the current "
    "PyTorch installation.\nRuntimeError: CUDA error: no kernel image is available for execution on the device",
    "cuda-device-assert": "../aten/src/ATen/native/cuda/Loss.cu:250: nll_loss_forward: block: [0,0,0], thread: "
    "[3,0,0] Assertion `t >= 0 && t < n_classes` failed.\nRuntimeError: CUDA error: device-side assert triggered",
    "cuda-illegal-access": "RuntimeError: CUDA error: an illegal memory access was encountered\nCUDA kernel errors "
    "might be asynchronously reported at some other API call",
    "cublas-handle": "RuntimeError: CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasCreate(handle)`",
    "cublas-failed": "RuntimeError: CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling `cublasSgemm( handle, "
    "opa, opb)`",
    "cudnn-version": "E0000 cuda_dnn.cc:522] Loaded runtime CuDNN library: 9.1.0 but source was compiled with: 9.3.0.",
    "cudnn-handle": "E tensorflow/stream_executor/cuda/cuda_dnn.cc:377] Could not create cudnn handle: "
    "CUDNN_STATUS_NOT_INITIALIZED",
    "cudnn-no-algorithm": TRACEBACK + "RuntimeError: GET was unable to find an engine to execute this computation",
    "cuda-library-missing": "ImportError: libcudart.so.12: cannot open shared object file: No such file or directory",
    "cuda-libraries-mixed": "ImportError: "
    "/opt/env/lib/python3.11/site-packages/nvidia/cusparse/lib/libcusparse.so.12: undefined symbol: "
    "__nvJitLinkAddData_12_1, version libnvJitLink.so.12",
    "cuda-not-in-torch": "AssertionError: Torch not compiled with CUDA enabled",
    "cuda-checkpoint": "RuntimeError: Attempting to deserialize object on a CUDA device but torch.cuda.is_available() "
    "is False.",
    "nvidia-driver-missing": "RuntimeError: Found no NVIDIA driver on your system. Please check that you have an "
    "NVIDIA GPU and installed a driver",
    "cuda-device-number": "RuntimeError: CUDA error: invalid device ordinal",
    "cuda-busy": "RuntimeError: CUDA error: all CUDA-capable devices are busy or unavailable",
    "cuda-in-fork": "RuntimeError: Cannot re-initialize CUDA in forked subprocess. To use CUDA with multiprocessing, "
    "you must use the 'spawn' start method",
    "cuda-graph-capture": "RuntimeError: CUDA error: operation not permitted when stream is capturing",
    "nccl-missing": "RuntimeError: Distributed package doesn't have NCCL built in",
    "nccl-failed": "torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:1970, unhandled system "
    "error (run with NCCL_DEBUG=INFO for details), NCCL version 2.20.5\nncclSystemError: System call failed",
    "xla-tools-missing": "INTERNAL: libdevice not found at ./libdevice.10.bc [Op:__inference_one_step_on_iterator]",
    "gpu-hardware": "RuntimeError: CUDA error: uncorrectable ECC error encountered",
    "cuda-unknown": "UserWarning: CUDA initialization: CUDA unknown error - this may be due to an incorrectly set up "
    "environment, e.g. changing env variable CUDA_VISIBLE_DEVICES after program start.",
    "tensorflow-no-gpu": "W tensorflow/core/common_runtime/gpu/gpu_device.cc:2342] Cannot dlopen some GPU libraries. "
    "Please make sure the missing libraries mentioned above are installed properly. Skipping registering GPU "
    "devices...",
    "too-many-open-files": "OSError: [Errno 24] Too many open files: '/Users/someone/data/00017.png'",
    "shared-memory": "RuntimeError: DataLoader worker (pid 417) is killed by signal: Bus error. It is possible that "
    "dataloader's workers are out of shared memory. Please try to raise your shared memory limit.",
    "spawn-main-guard": "RuntimeError: \n        An attempt has been made to start a new process before the\n        "
    "current process has finished its bootstrapping phase.\n",
    "spawn-pickle": "AttributeError: Can't pickle local object 'make_transforms.<locals>.<lambda>'",
    "mixed-devices": TRACEBACK
    + "RuntimeError: Expected all tensors to be on the same device, but found at least two devices, "
    "cuda:0 and cpu! (when checking argument for argument mat1 in method wrapper_CUDA_addmm)",
    "mixed-dtypes": "RuntimeError: mat1 and mat2 must have the same dtype, but got Float and BFloat16",
    "generator-device": "RuntimeError: Expected a 'mps:0' generator device but found 'cpu'",
    "half-precision-device": "ValueError: fp16 mixed precision requires a GPU (not 'mps').",
    "bfloat16-to-numpy": "TypeError: Got unsupported ScalarType BFloat16",
    "gradient-to-numpy": "RuntimeError: Can't call numpy() on Tensor that requires grad. Use tensor.detach().numpy() "
    "instead.",
    "weights-only": "_pickle.UnpicklingError: Weights only load failed. This file can still be loaded, to do so you "
    "have two options",
    "view-on-strides": "RuntimeError: view size is not compatible with input tensor's size and stride (at least one "
    "dimension spans across two contiguous subspaces). Use .reshape(...) instead.",
    "host-out-of-memory": "RuntimeError: [enforce fail at alloc_cpu.cpp:117] err == 0. DefaultCPUAllocator: can't "
    "allocate memory: you tried to allocate 68719476736 bytes. Error code 12 (Cannot allocate memory)",
    "disk-full": "OSError: [Errno 28] No space left on device: 'checkpoints/epoch-3.pt'",
    "loader-worker-died": "RuntimeError: DataLoader worker (pid(s) 4711, 4712) exited unexpectedly",
    "wrong-architecture": "ImportError: dlopen(/opt/numpy/core/_multiarray_umath.so, 0x0002): tried: "
    "'/opt/numpy/core/_multiarray_umath.so' (mach-o file, but is an incompatible architecture (have 'x86_64', need "
    "'arm64'))",
    "rosetta-avx": "The TensorFlow library was compiled to use AVX instructions, but these aren't available on your "
    "machine.\nzsh: abort      python train.py",
    "illegal-instruction": "zsh: illegal hardware instruction  python train.py\nIllegal instruction: 4",
    "no-wheel": "ERROR: Could not find a version that satisfies the requirement tensorflow-metal (from versions: "
    "none)\nERROR: No matching distribution found for tensorflow-metal",
    "wheel-not-supported": "ERROR: tensorflow-2.6.0-cp38-cp38-macosx_11_0_x86_64.whl is not a supported wheel on this "
    "platform.",
    "externally-managed": "error: externally-managed-environment\n\n× This environment is externally managed",
    "numpy-abi": "A module that was compiled using NumPy 1.x cannot be run in\nNumPy 2.1.0 as it may crash. To "
    "support both 1.x and 2.x\nversions of NumPy, modules must be compiled with NumPy 2.0.\nAttributeError: "
    "_ARRAY_API not found",
    "numpy-removed": "AttributeError: module 'numpy' has no attribute 'bool'.\n`np.bool` was a deprecated alias for "
    "the builtin `bool`.",
    "protobuf-version": "TypeError: Descriptors cannot be created directly.\nIf this call came from a _pb2.py file, "
    "your generated code is out of date and must be regenerated with protoc >= 3.19.0.",
    "openmp-twice": "OMP: Error #15: Initializing libomp.dylib, but found libiomp5.dylib already initialized.\nOMP: "
    "Hint This means that multiple copies of the OpenMP runtime have been linked into the program.",
    "libomp-missing": "OSError: dlopen(lib_lightgbm.dylib, 0x0006): Library not loaded: @rpath/libomp.dylib",
    "glibc-too-old": "ImportError: /lib/x86_64-linux-gnu/libm.so.6: version `GLIBC_2.35' not found (required by "
    "libmlx.so)",
    "torch-compile-python": "RuntimeError: torch.compile is not supported on Python 3.15+",
    "triton-missing": "torch._inductor.exc.InductorError: RuntimeError: Cannot find a working triton installation.",
    "certificates": "urllib.error.URLError: <urlopen error [SSL: CERTIFICATE_VERIFY_FAILED] certificate verify "
    "failed: unable to get local issuer certificate (_ssl.c:1006)>",
    "native-library": "ImportError: Traceback (most recent call last):\n\nFailed to load the native TensorFlow "
    "runtime.\nSee https://www.tensorflow.org/install/errors for some common causes and solutions.",
}

HEALTHY = """2026-11-02 10:11:12.391823: I tensorflow/core/util/port.cc:153] oneDNN custom operations are on.
Using device: mps, PyTorch 2.9.0, NumPy 2.1.0, CUDA available: False
Downloading https://example.org/cifar-10.tar.gz: 100%|##########| 170M/170M [00:12<00:00, 14.1MB/s]
Epoch 1/10
1563/1563 [==============================] - 21s 13ms/step - loss: 1.8423 - accuracy: 0.3471 - val_loss: 1.6012
Epoch 2/10: error rate 0.31, out of 50000 images, memory 3.2 GB allocated
INFO: DataLoader uses 4 workers, pin_memory=False, files open: 71
Saved checkpoints/epoch-2.pt (98 MB). Killed time: 0 s. Device memory 812 MiB of 16 GiB
Finished: top-1 accuracy 0.912
"""
