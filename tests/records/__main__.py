"""Rewrite the records: `python -m tests.records [NAME ...]`. It prints which have changed."""

from __future__ import annotations

import sys
import time

from tests.records import lines_of, load, path_of


def main(names: list[str]) -> None:
    for name in names or list(load()):
        load()
        begun, path = time.process_time(), path_of(name)
        text = "\n".join(lines_of(name)) + "\n"
        is_same = path.exists() and path.read_text(encoding="utf-8") == text
        path.write_text(text, encoding="utf-8")
        print(
            f"{'unchanged' if is_same else 'REWRITTEN':<10} {name:<20} {len(text) >> 10:>4} KiB "
            f"{time.process_time() - begun:5.1f} s"
        )


if __name__ == "__main__":
    main(sys.argv[1:])
