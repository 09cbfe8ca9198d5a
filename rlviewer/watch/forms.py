"""The form of a saved search."""

from typing import Any

from django import forms

from rlviewer.accounts.models import Project
from rlviewer.review.queries import offered_names
from rlviewer.watch.models import SavedSearch
from rlviewer.watch.services import Wanted


class SearchForm(forms.Form):
    name = forms.CharField(label="Name", max_length=100)
    query = forms.CharField(
        label="Filter", max_length=900, help_text="As in the list of rollouts, such as stop:length correct:yes."
    )
    about = forms.CharField(label="What its hits may mean", max_length=300, required=False)
    limit_percent = forms.FloatField(
        label="Alarm above",
        min_value=0,
        max_value=99.9,
        required=False,
        help_text="Percent of a step's rollouts, in three training steps in a row. Empty: no alarm.",
    )
    true_label = forms.ChoiceField(
        label="A hit is right when it has",
        required=False,
        help_text="From what people say of hits comes the precision.",
    )

    def __init__(self, project: Project, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        choices = [("", "a thumb up"), *((name, f"the label “{name}”") for name in offered_names(project))]
        choice = self.fields["true_label"]
        assert isinstance(choice, forms.ChoiceField)
        choice.choices = choices
        self.fields["query"].widget.attrs.update(spellcheck="false", autocapitalize="none", autocomplete="off")

    @staticmethod
    def initial_of(search: SavedSearch) -> dict[str, Any]:
        return {
            "name": search.name,
            "query": search.query,
            "about": search.about,
            "limit_percent": None if search.limit_rate is None else round(100 * search.limit_rate, 6),
            "true_label": search.true_label.name if search.true_label else "",
        }

    def wanted(self) -> Wanted:
        said = self.cleaned_data
        limit = said["limit_percent"]
        return Wanted(
            said["name"], said["query"], said["about"], None if limit is None else limit / 100, said["true_label"]
        )
