"""The public names of rawnn's errors."""

from rawnn.common.errors import *  # noqa: F403
