"""Running: loaders and their processes, memory of the host, tensors on two devices."""

from __future__ import annotations

from metalmark.doctor.known.base import KnownError, Weight

LOADER = "https://docs.pytorch.org/docs/stable/data.html"
SHARING = "https://docs.pytorch.org/docs/stable/multiprocessing.html#sharing-strategies"
SPAWN = "https://docs.python.org/3/library/multiprocessing.html#the-spawn-and-forkserver-start-methods"

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
)
