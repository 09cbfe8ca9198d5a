"""Vendored files are what their packages shipped, and nothing is vendored without a row."""

import hashlib
import re
from pathlib import Path

VENDOR = Path(__file__).parent.parent / "static" / "vendor"
ROW = re.compile(r"^\| (\S+) \| .* \| ([0-9a-f]{64}) \|$", re.MULTILINE)


def test_every_vendored_file_has_its_checksum() -> None:
    named = dict(ROW.findall((VENDOR / "VERSIONS.md").read_text()))
    found = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in VENDOR.glob("*.js")}
    assert found == named


def test_the_accessibility_checker_is_the_named_one() -> None:
    digest = hashlib.sha256((Path(__file__).parent / "data" / "axe.min.js").read_bytes()).hexdigest()
    assert digest in (VENDOR / "VERSIONS.md").read_text()
