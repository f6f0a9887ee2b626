"""A worker that says which repeat it is, and ends without an outcome."""

import os
import sys


def main(job_path: str, outcome_path: str) -> None:
    del job_path, outcome_path
    sys.stdout.write(f"repeat {os.environ['METALMARK_REPEAT']}\n")
    sys.stdout.flush()
    os._exit(1)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
