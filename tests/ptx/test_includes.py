"""The files that a source includes: which are found where, and in which encoding they are."""

from __future__ import annotations

import codecs
from pathlib import Path

import pytest

from rawnn.cuda.compiling.includes import decode_source, find_included_files


@pytest.mark.parametrize(("encoding", "bom"), [
    ("utf-8", b""), ("utf-8", codecs.BOM_UTF8), ("utf-16-le", codecs.BOM_UTF16_LE),
    ("utf-16-be", codecs.BOM_UTF16_BE), ("utf-32-le", codecs.BOM_UTF32_LE),
    ("utf-32-be", codecs.BOM_UTF32_BE), ("utf-16-le", b""), ("utf-16-be", b""), ("latin-1", b"")])
def test_a_text_is_read_in_its_encoding(encoding: str, bom: bytes) -> None:
    for text in ("int a; // \xe4\n\n int b;\n" * 9, "#define A 1\n"):
        for end in ("\n", "\r\n", "\r"):
            assert decode_source(bom + text.replace("\n", end).encode(encoding)) == text


def test_includes_are_followed_from_file_to_file(tmp_path: Path) -> None:
    mine, other, cuda = (tmp_path / name for name in ("mine", "other", "cuda"))
    for path, text in {
            mine / "a.h": '#include "c.h"\n#include <b.h>\n', mine / "b.h": '#include "sub/d.h"\n',
            mine / "c.h": "", mine / "sub/d.h": '#include "e.h"\n#include "a.h"\n',
            mine / "sub/e.h": "int e;\n", other / "e.h": "int other;\n", other / "far.h": "",
            cuda / "cuda.h": '#include "lost.h"\n', other / "vector": "int no;\n"}.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (other / "far.h").write_bytes(codecs.BOM_UTF8 + b"int far;\n")
    text = ('#include "a.h"\n#include "far.h"\n  # include <cuda.h>\n#include <vector>\n'
            '#include "gone.h"\n#include <away.h>\n// #include "none.h"\n#include "e.h"\n')
    found = find_included_files(text, [mine, other, cuda], lambda folder: folder == str(cuda),
                                lambda name: name == "vector")
    files = [mine / name for name in ("a.h", "b.h", "c.h", "sub/d.h", "sub/e.h")]
    files += [other / "far.h", other / "e.h"]
    assert set(found.texts) == {"", *map(str, files)}
    assert found.texts[str(other / "far.h")] == "int far;\n"
    assert found.encoded == {str(other / "far.h")}
    assert found.missing == {"gone.h": True, "away.h": False, "vector": False}
    assert found.targets[str(mine / "sub/d.h"), "e.h"] == str(mine / "sub/e.h")  # beside it
    assert found.targets["", "e.h"] == str(other / "e.h")
    assert ("", "cuda.h") not in found.targets
    assert found.rewrite("", text).splitlines()[:3] == [
        f'#include "{mine}/a.h"', f'#include "{other}/far.h"', "  # include <cuda.h>"]
    assert found.rewrite(str(mine / "a.h"), found.texts[str(mine / "a.h")]) == (
        f'#include "{mine}/c.h"\n#include "{mine}/b.h"\n')
