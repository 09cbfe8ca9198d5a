"""A configuration as TOML and back."""

from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st

from training.config import RunConfig, TaskConfig

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=5)
values = st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | texts
tables = st.recursive(
    st.dictionaries(texts, values, max_size=3),
    lambda inner: st.dictionaries(texts, values | inner | st.lists(values | inner, max_size=2), max_size=3),
    max_leaves=6,
)


@example({"outer": {"inner": {}}}, {}, {})
@given(tables, tables, tables)
def test_toml_comes_back_as_it_was(params: dict[str, Any], overrides: dict[str, Any], hooks: dict[str, Any]) -> None:
    config = RunConfig(task=TaskConfig(params=params), algorithm_params=overrides, hooks=hooks)
    source = config.to_toml()
    again = RunConfig.from_toml(source)
    assert again == config
    # Equal to the letter, as 1, 1.0 and true are equal to Python.
    assert again.to_toml() == source
