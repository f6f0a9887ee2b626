"""A worker that writes its outcome and then never ends, as a framework's threads can make it."""

from __future__ import annotations

import sys
import time

from metalmark.runner.worker import main

if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
    time.sleep(600)
