"""Frameworks are not to report their use."""

import os

os.environ["HAYSTACK_TELEMETRY_ENABLED"] = "False"
