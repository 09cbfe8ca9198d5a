"""Forms of people and projects."""

from typing import Any

from django import forms
from django.contrib.auth.password_validation import validate_password
from django.contrib.auth.validators import UnicodeUsernameValidator

from rlviewer.accounts.models import Role, User


class SignInForm(forms.Form):
    username = forms.CharField(label="Name", max_length=150)
    password = forms.CharField(label="Password", max_length=4096, strip=False, widget=forms.PasswordInput)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.fields["username"].widget.attrs.update(autocomplete="username", autocapitalize="none", autofocus=True)
        self.fields["password"].widget.attrs.update(autocomplete="current-password")


class ProjectForm(forms.Form):
    name = forms.CharField(label="Name", max_length=100)
    description = forms.CharField(label="Description", max_length=500, required=False)


class MemberForm(forms.Form):
    username = forms.CharField(label="Name", max_length=150)
    role = forms.ChoiceField(label="Role", choices=Role.choices)


class PersonForm(forms.Form):
    username = forms.CharField(
        label="Name", max_length=150, validators=[UnicodeUsernameValidator()], help_text="Letters, digits and @ . + - _"
    )
    is_admin = forms.BooleanField(label="Site admin: sees every project and adds people", required=False)


class TokenForm(forms.Form):
    name = forms.CharField(label="Name", max_length=100, help_text="Where it will be used, such as “notebook”.")


class PasswordForm(forms.Form):
    """The person's own password, changed after giving the present one."""

    old = forms.CharField(label="Present password", max_length=4096, strip=False, widget=forms.PasswordInput)
    new = forms.CharField(
        label="New password",
        max_length=4096,
        strip=False,
        widget=forms.PasswordInput,
        help_text="At least 10 characters; long beats complicated.",
    )

    def __init__(self, user: User, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.user = user
        self.fields["old"].widget.attrs["autocomplete"] = "current-password"
        self.fields["new"].widget.attrs["autocomplete"] = "new-password"

    def clean_old(self) -> str:
        old = self.cleaned_data["old"]
        if not self.user.check_password(old):
            raise forms.ValidationError("This is not your present password.")
        return old

    def clean_new(self) -> str:
        new = self.cleaned_data["new"]
        validate_password(new, self.user)
        return new
