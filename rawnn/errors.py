"""What rawnn raises, by its public name."""

from rawnn.common.errors import *  # noqa: F403
