"""TensorFlow and JAX on Metal."""

from __future__ import annotations

from metalmark.doctor.known.base import KnownError, Weight

PLUGIN = "https://developer.apple.com/metal/tensorflow-plugin/"
PIN = 'pip install "tensorflow==2.19.*" tensorflow-metal==1.2.0  # Python 3.9 to 3.12, arm64'

ERRORS = (
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
