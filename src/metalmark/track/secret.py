"""What must reach neither the queue nor the screen: passwords, keys and tokens of trackers."""

from __future__ import annotations

import os
import re
from urllib.parse import urlsplit, urlunsplit

VARIABLES = ("MLFLOW_TRACKING_PASSWORD", "MLFLOW_TRACKING_TOKEN", "WANDB_API_KEY", "DATABRICKS_TOKEN")
_USER = re.compile(r"(?<=://)[^/@\s'\"]+@")


def without_user(uri: str) -> str:
    """The URI without `user:password@`, and without what follows a question mark: tokens are passed there."""
    scheme, netloc, path, _, _ = urlsplit(uri)
    return urlunsplit((scheme, netloc.rpartition("@")[2], path, "", "")) if netloc else uri.partition("?")[0]


def redact(text: str) -> str:
    """What a library said, without what it may have repeated."""
    for name in VARIABLES:
        secret = os.environ.get(name, "")
        if len(secret) >= 4:
            text = text.replace(secret, "***")
    return _USER.sub("", text)
