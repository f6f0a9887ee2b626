"""What must be known of a workload before it runs. A user's file is read in a process of its own, since it may import a
framework, raise or hang: `python -m metalmark.runner.describe FILE.py:NAME ANSWER`."""

import sys
from pathlib import Path

import msgspec

from metalmark.errors import MetalmarkError, UsageError
from metalmark.machine.durable import write_struct
from metalmark.model.workload import WorkloadInfo
from metalmark.runner.ask import NoAnswer, ask, in_one_line, traceback_of
from metalmark.workloads.catalog import digest, is_file, load, load_file, split

TIMEOUT_S = 120.0
HINT_LINES = 12


def describe(word: str) -> tuple[WorkloadInfo, str]:
    """Return the workload, and the path of its file (empty for one of the catalogue)."""
    if not is_file(word):
        if word.endswith(".py"):
            raise UsageError(
                f"{word} names a file, but not what in it.", hint=f"Write {word}:NAME, its Workload's name."
            )
        return load(word).info, ""
    path, name = split(word)
    if not path.is_file():
        raise UsageError(f"There is no file {path}.", hint="Give the path of your own workload as file.py:name.")
    source = str(path.resolve())
    environment = {"KERAS_BACKEND": "tensorflow", "TF_CPP_MIN_LOG_LEVEL": "2"}
    answer = ask(__name__, f"{source}:{name}", WorkloadInfo, environment=environment, timeout_s=TIMEOUT_S)
    if isinstance(answer, NoAnswer):
        raise UsageError(
            f"{path.name} can't be used: {answer.reason}",
            hint="\n".join(answer.detail.splitlines()[-HINT_LINES:]) or "Run it by itself first.",
        )
    return answer, source


def main(word: str, answer: str) -> None:
    path, name = split(word)
    result: WorkloadInfo | NoAnswer
    try:
        info = load_file(path, name).info
        label = f"{path.name}:{name}"
        result = msgspec.structs.replace(info, name=label, digest=digest(path))
    except MetalmarkError as error:
        result = NoAnswer(reason=error.message, detail=error.hint)
    except BaseException as error:  # noqa: BLE001  a user's file may raise anything, SystemExit too
        result = NoAnswer(reason=in_one_line(error, "it raises "), detail=traceback_of(error))
    write_struct(Path(answer), result)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
