"""docs/filters.md out of the table that drives the language, its completion and its help.

python -m rlviewer.search.documentation > docs/filters.md
"""

import os
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rlviewer.search.fields import Field

INTRODUCTION = """# Filters

One search box over the rollouts of a run or of a project. The same filter works in the list, in an export and as `filter=` in the
API. Conditions side by side must all hold:

```
reward<0.5 len>200 task:addition "carry the one" step:100..200 stop:length dead:yes
```

This page is written by `python -m rlviewer.search.documentation`.
"""
RULES = """
## What to know

- `reward>0.5` finds no NaN, though Postgres holds NaN for larger than every number. `reward:nan` finds those, `reward:none` the
  missing ones. A condition and its negation part all rollouts: `-reward>0.5` also finds what has no reward.
- **Words** come from an index that a worker fills shortly after rollouts are stored; the list says how many are still missing.
  Characters in single quotes and regular expressions are read text by text: hits come as they are found, and the total counts up.
  The first 200,000 characters of a completion can be searched. Of words that are in many rollouts the total counts up as well.
- **Prompts** are searched by `prompt:` with the same three kinds of quotes: `prompt:"how many"`, `prompt:'= 12'`, `prompt:/^What/`. A
  number without quotes is the prompt's own: `prompt:27`.
- **Regular expressions** are those of Postgres, up to 200 characters. References back (`\\1`) are refused, since they can take
  for ever; what is left takes time linear in the text, and is stopped after 30 seconds.
- A filter has at most 1,000 characters and 40 conditions, brackets lie at most 12 deep. An error names its place and what was
  expected there; the last result stays on screen.
- `label:`, `thumb:` and `labelled:` ask what people said of a rollout on its page, of the whole or of a range of its tokens; a note
  alone is no label. A label of two words is quoted: `label:'checker bug'`.
- **Parts of the reward** are asked by their names, `part.format>0` or `part."exact answer":1`: the sum of the spans of that name. A
  rollout without such a part is found by `part.format:none`. The list shows them as columns, those that the run has; as they are
  read for the page's rows only, they give no order.
- Steps that a later attempt repeated are left out, as everywhere.

## Order and pages

Press a column's head to sort by it; values that are missing come last, after NaN. The address holds filter, order and place
(`after=` names the value and the number of the row before), so a link shows a colleague the same rows, and the page after row
999,950 costs what the first one does. The slider above the list goes to any value of the column it is sorted by, the box beside it to
a step (`340`) or a rollout (`#1234`). “20 at random” draws from what the filter finds; its address keeps the draw.

## Beside the list

On the left, counts by task, ending and correctness, and how rewards, lengths and steps spread. A click adds the value to the filter or
takes it away; a range is dragged over the bars or typed. A facet's own terms are left out of its counts, so that the others show what
they would find. Counts are of all that matches up to 200,000 rollouts, beyond that (and where texts are read) of the newest, which
the facets then say. `Space` opens a preview of the row on the right: the text with every match marked, reward, its parts, advantage.

Keys: `/` filter, `j` `k` rows, `Space` preview, `Enter` opens, `x` selects, `c` compares what is selected, `n` `p` pages, `Home` `End` first and last, `r` 20 at
random, `?` all keys.

## Exports

Of exactly what the filter finds, in the order of the list (pairs: in the order of storing), streamed.

| format | holds |
| --- | --- |
| JSON lines | every field below with `prompt_text`, `reference_answer`, `completion` and `labels` (what, note, tokens, by whom, when); a text that is no UTF-8 also as `..._base64` |
| CSV | the same, labels as JSON; what a spreadsheet would take for a formula begins with `'` |
| Parquet | the same to the bit; texts are bytes, labels JSON |
| SFT examples | `prompt`, `completion`, `rollout` |
| Preference pairs | `prompt`, `chosen`, `rejected`, their rewards and rollouts: the best and the worst found of each group, where rewards differ |
| Prefixes | `prompt`, `prefix`, `prefix_tokens`, `reward`, `rollout`: the completion up to each recorded boundary of its steps, where the run's tokens have texts |
"""


def document() -> str:
    from rlviewer.search.fields import FIELDS, FORMS

    forms = [f"| `{form}` | {words} | `{example}` |" for form, words, example in FORMS]
    fields = [
        f"| `{field.name}`{''.join(f' `{alias}`' for alias in field.aliases)} | {_kind(field)} | {field.help} | `{field.example}` |"
        for field in FIELDS.values()
    ]
    return "\n".join(
        [
            INTRODUCTION,
            "| write | to find | example |",
            "| --- | --- | --- |",
            *forms,
            "",
            "## Fields",
            "",
            "| field | holds | what it is | example |",
            "| --- | --- | --- | --- |",
            *fields,
            RULES,
        ]
    )


def _kind(field: "Field") -> str:
    if field.choices is not None:
        return ", ".join(field.choices)
    kind = {"int": "a whole number", "float": "a number", "bool": "yes or no", "filled": "yes or no"}.get(
        field.kind, "a text"
    )
    return f"{kind}{f', {field.unit}' if field.unit else ''}{', may be missing' if field.nullable else ''}"


if __name__ == "__main__":
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "rlviewer.settings")
    import django

    django.setup()
    sys.stdout.write(document())
