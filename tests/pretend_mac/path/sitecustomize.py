"""Makes this process a pretend Mac where PRETEND_MAC names one. Python imports this file when it starts."""

import os

if os.environ.get("PRETEND_MAC"):
    import pretend_mac

    pretend_mac.install()
