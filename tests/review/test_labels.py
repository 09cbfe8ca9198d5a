"""Labels: what people say of rollouts, who may change it, and what the audit trail keeps."""

from typing import Any

import pytest
from django.core.exceptions import PermissionDenied
from django.test import Client
from django.urls import reverse

from rlviewer.accounts.models import AuditEvent, Member, Project, Role, User
from rlviewer.ingest.services import store_batch
from rlviewer.outbox.models import Announcement
from rlviewer.review import services
from rlviewer.review.models import Label, LabelName, Thumb
from rlviewer.review.queries import label_panel, offered_names
from rlviewer.review.services import LabelError, Said
from rlviewer.runs.models import Rollout
from tests.factories import make_batch, make_run, make_user

UP, DOWN = Said(Thumb.UP), Said(Thumb.DOWN)


@pytest.fixture
def rollout(project: Project) -> Rollout:
    store_batch(make_batch(make_run(project), groups=1, group_size=2, tokens=8), source="test")
    return Rollout.objects.select_related("step__run__project").order_by("pk")[1]  # 8 tokens


def said(rollout: Rollout) -> list[tuple[str, str, Any]]:
    return [(label.words, label.author.username, label.token_start) for label in rollout.labels.order_by("pk")]


def test_a_thumb_is_said_once_and_the_other_one_replaces_it(alice: User, bob: User, rollout: Rollout) -> None:
    first = services.add_label(alice, rollout, UP)
    assert services.add_label(alice, rollout, UP) == first
    services.add_label(bob, rollout, UP)
    services.add_label(alice, rollout, Said(Thumb.UP, tokens=(2, 5)))
    services.add_label(alice, rollout, DOWN)
    assert said(rollout) == [("thumb down", "alice", None), ("thumb up", "bob", None), ("thumb up", "alice", 2)]


def test_labels_stand_beside_a_thumb_and_notes_beside_each_other(alice: User, rollout: Rollout) -> None:
    for one in (UP, Said(name="hack"), Said(name="hack"), Said(name="good"), Said(note="odd"), Said(note="very odd")):
        services.add_label(alice, rollout, one)
    assert [words for words, _, _ in said(rollout)] == ["thumb up", "hack", "good", "note", "note"]
    services.add_label(alice, rollout, Said(name="hack", note="prints the answer"))
    assert Label.objects.get(name__name="hack").note == "prints the answer"


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (Said(), "Choose a thumb"),
        (Said(note=" \x00\n"), "Choose a thumb"),
        (Said(note="x" * 2001), "at most 2,000"),
        (Said(Thumb.UP, tokens=(3, 3)), "not of this rollout"),
        (Said(Thumb.UP, tokens=(0, 9)), "not of this rollout"),
        (Said(name="splendid"), "no label “splendid”"),
    ],
)
def test_what_cannot_be_stored_says_why(alice: User, rollout: Rollout, wrong: Said, words: str) -> None:
    with pytest.raises(LabelError, match=words):
        services.add_label(alice, rollout, wrong)
    assert not Label.objects.exists()


def test_only_its_author_or_an_admin_changes_a_label(alice: User, bob: User, rollout: Rollout) -> None:
    mary = make_user("mary")
    Member.objects.create(project=rollout.step.run.project, user=mary, role=Role.MEMBER)
    label = services.add_label(bob, rollout, Said(name="hack", note="odd"))
    with pytest.raises(PermissionDenied):
        services.edit_label(mary, label, UP)
    with pytest.raises(PermissionDenied):
        services.remove_label(mary, label)
    services.edit_label(bob, label, Said(name="good", note="fine after all"))
    assert label.edited_at
    services.remove_label(alice, label)  # alice administers the project
    assert not Label.objects.exists()
    events = AuditEvent.objects.filter(target=f"rollout:{rollout.pk}").order_by("pk")
    assert [(event.verb, event.actor_name, event.detail["said"]) for event in events] == [
        ("label", "bob", "hack"),
        ("edit-label", "bob", "good"),
        ("remove-label", "alice", "good"),
    ]
    assert events[1].detail["before"] == {"said": "hack", "note": "odd"}
    assert events[2].detail["by"] == "bob"
    assert Announcement.objects.filter(topic=f"run:{rollout.run_id}", event="rollout-labelled").count() == 3


def test_an_edit_that_would_say_the_same_twice_is_refused(bob: User, rollout: Rollout) -> None:
    services.add_label(bob, rollout, Said(name="hack"))
    other = services.add_label(bob, rollout, Said(name="good"))
    with pytest.raises(LabelError, match="said of it already"):
        services.edit_label(bob, other, Said(name="hack"))
    assert [words for words, _, _ in said(rollout)] == ["hack", "good"]


def test_the_vocabulary_is_kept_once_it_is_used(bob: User, project: Project, rollout: Rollout) -> None:
    assert offered_names(project) == ["good", "hack", "checker bug"] and not LabelName.objects.exists()
    services.add_label(bob, rollout, Said(name="hack"))
    services.add_name(bob, project, "  Copied   Prompt ")
    services.rename_name(bob, project, "hack", "reward hack")
    services.archive_name(bob, project, "good", is_archived=True)
    assert offered_names(project) == ["reward hack", "checker bug", "copied prompt"]
    assert [words for words, _, _ in said(rollout)] == ["reward hack"]
    for taken in ("good", "Reward Hack", "", "it's", "none", "x" * 41):
        with pytest.raises(LabelError):
            services.add_name(bob, project, taken)
    with pytest.raises(LabelError, match="no label “good”"):
        services.add_label(bob, rollout, Said(name="good"))
    services.archive_name(bob, project, "good", is_archived=False)
    services.add_label(bob, rollout, Said(name="good"))


def test_the_panel_knows_what_the_person_says_of_the_whole_rollout(alice: User, bob: User, rollout: Rollout) -> None:
    services.add_label(bob, rollout, Said(Thumb.DOWN))
    own = services.add_label(alice, rollout, Said(name="hack"))
    services.add_label(alice, rollout, Said(Thumb.UP, tokens=(1, 3)))
    panel = label_panel(alice, rollout)
    assert panel.thumb_up is None and panel.thumb_down is None
    assert panel.choices == [("good", None), ("hack", own.pk), ("checker bug", None)]
    assert len(panel.labels) == 3


def test_labels_over_the_page(client: Client, bob: User, charlie: User, rollout: Rollout) -> None:
    client.force_login(bob)
    panel = reverse("rollout-labels", args=[rollout.pk])
    assert f'hx-get="{panel}"' in client.get(reverse("rollout-detail", args=[rollout.pk])).content.decode()
    assert "Nobody has labelled it." in client.get(panel).content.decode()
    add = reverse("label-add", args=[rollout.pk])
    answer = client.post(add, {"said": "thumb up", "note": "<b>bold</b>", "token_start": "2", "token_end": "5"})
    page = answer.content.decode()
    assert "tokens 2–4" in page and "&lt;b&gt;bold&lt;/b&gt;" in page
    for form in ({"said": "thumb up", "token_start": "2"}, {"said": "nonsense"}, {}):
        answer = client.post(add, form)
        assert answer.status_code == 422 and 'role="alert"' in answer.content.decode()
    label = Label.objects.get()
    edited = client.post(reverse("label-edit", args=[label.pk]), {"said": "hack", "note": "look"})
    assert "hack" in edited.content.decode() and Label.objects.get().words == "hack"
    client.force_login(charlie)
    for address in (panel, add, reverse("label-edit", args=[label.pk]), reverse("label-remove", args=[label.pk])):
        assert client.post(address).status_code in {404, 405} and client.get(address).status_code in {404, 405}
    client.force_login(bob)
    assert "Nobody has labelled it." in client.post(reverse("label-remove", args=[label.pk])).content.decode()


def test_a_viewer_reads_and_writes_nothing(client: Client, bob: User, rollout: Rollout) -> None:
    label = services.add_label(bob, rollout, Said(name="hack"))
    Member.objects.filter(user=bob).update(role=Role.VIEWER)
    client.force_login(bob)
    page = client.get(reverse("rollout-labels", args=[rollout.pk])).content.decode()
    assert "hack" in page and "<form" not in page
    assert client.post(reverse("label-remove", args=[label.pk])).status_code == 403
    page = client.get(reverse("project-labels", args=[rollout.step.run.project_id])).content.decode()
    assert "checker bug" in page and page.count("<form") == 1  # signing out


def test_the_page_of_labels(
    client: Client, bob: User, project: Project, rollout: Rollout, django_assert_num_queries
) -> None:
    client.force_login(bob)
    address = reverse("project-labels", args=[project.pk])
    services.add_label(bob, rollout, Said(name="checker bug"))
    services.add_label(bob, rollout, UP)
    with django_assert_num_queries(7):
        page = client.get(address).content.decode()
    assert "1 rollout with a thumb or a label" in page and "label:&#x27;checker bug&#x27;" in page
    change = reverse("label-name-change", args=[project.pk])
    client.post(change, {"old": "checker bug", "name": "bug"})
    client.post(change, {"old": "bug", "archived": "yes"})
    assert "archived" in client.get(address).content.decode()
    refused = client.post(reverse("label-name-add", args=[project.pk]), {"name": "hack"})
    assert refused.status_code == 422 and "already" in refused.content.decode()
    answer = client.post(change, {"old": "never", "name": "x"}, follow=True)
    assert "has no label “never”" in answer.content.decode()
