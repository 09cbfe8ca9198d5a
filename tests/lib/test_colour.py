"""Colours: zero is neutral, signs differ, text reads on every bucket, the stylesheet is what the code says."""

from pathlib import Path

import pytest

from rlviewer.lib import colour

STYLES = Path(__file__).parents[2] / "static" / "css" / "scales.css"
# --text of app.css in the light and in the dark mode.
TEXT = ((0x1B, 0x1F, 0x27), (0xE4, 0xE7, 0xEC))


def luminance(rgb: colour.Rgb) -> float:
    channels = [c / 255 / 12.92 if c / 255 <= 0.03928 else ((c / 255 + 0.055) / 1.055) ** 2.4 for c in rgb]
    return 0.2126 * channels[0] + 0.7152 * channels[1] + 0.0722 * channels[2]


def contrast(one: colour.Rgb, other: colour.Rgb) -> float:
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("scale", ["sg", "sq"])
@pytest.mark.parametrize("mode", [0, 1])
def test_text_reads_on_every_bucket(scale: str, mode: int) -> None:
    ratios = [contrast(colour.bucket_colours(scale, index)[mode], TEXT[mode]) for index in range(colour.BUCKETS)]
    assert min(ratios) >= 4.5


def test_zero_is_neutral() -> None:
    assert colour.bucket_colours("sg", 32) == colour.NEUTRAL


def test_positive_is_blue_and_negative_is_orange() -> None:
    for mode in (0, 1):
        red, _, blue = colour.bucket_colours("sg", 63)[mode]
        assert blue > red
        red, _, blue = colour.bucket_colours("sg", 1)[mode]
        assert red > blue


def test_the_stylesheet_is_what_the_code_says() -> None:
    assert STYLES.read_text() == colour.scales_css()


def test_the_text_colours_are_those_of_the_stylesheet() -> None:
    light, dark = ("#" + bytes(rgb).hex() for rgb in TEXT)
    assert f"--text: light-dark({light}, {dark})" in (STYLES.parent / "app.css").read_text()
