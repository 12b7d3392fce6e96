"""The version, defined once: the package, `--version`, and every result read it from here."""

__version__ = "0.1.0"
