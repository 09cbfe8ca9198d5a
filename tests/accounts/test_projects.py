"""Projects and their members: who may add, change and remove whom."""

from django.test import Client

from rlviewer.accounts.models import AuditEvent, Member, Project, Role, User


def test_whoever_makes_a_project_administers_it(client: Client, charlie: User) -> None:
    client.force_login(charlie)
    answer = client.post("/projects/new/", {"name": "mine", "description": ""})
    project = Project.objects.get(name="mine")
    assert answer["Location"] == f"/projects/{project.id}/"
    assert project.role_of(charlie) == Role.ADMIN
    assert AuditEvent.objects.filter(verb="create-project", project=project).exists()


def test_a_taken_name_is_an_error_beside_the_field(client: Client, charlie: User, project: Project) -> None:
    client.force_login(charlie)
    page = client.post("/projects/new/", {"name": project.name.upper()})
    assert page.status_code == 422 and "taken" in page.context["form"].errors["name"][0]


def test_an_admin_adds_changes_and_removes(client: Client, alice: User, charlie: User, project: Project) -> None:
    client.force_login(alice)
    here = f"/projects/{project.id}/members/"
    client.post(f"{here}set/", {"username": "Charlie", "role": "viewer"})
    assert project.role_of(charlie) == Role.VIEWER
    client.post(f"{here}set/", {"username": "charlie", "role": "member"})
    assert project.role_of(charlie) == Role.MEMBER
    client.post(f"{here}{Member.objects.get(user=charlie).id}/remove/")
    assert project.role_of(charlie) is None
    assert list(AuditEvent.objects.order_by("id").values_list("verb", flat=True)) == ["set-member"] * 2 + [
        "remove-member"
    ]


def test_a_member_may_look_but_not_manage(client: Client, bob: User, charlie: User, project: Project) -> None:
    client.force_login(bob)
    here = f"/projects/{project.id}/members/"
    page = client.get(here)
    assert page.status_code == 200 and b"Add member" not in page.content
    assert client.post(f"{here}set/", {"username": "charlie", "role": "admin"}).status_code == 403
    assert client.post(f"{here}{Member.objects.get(user=bob).id}/remove/").status_code == 403
    assert project.role_of(charlie) is None


def test_the_last_admin_stays(client: Client, alice: User, project: Project) -> None:
    client.force_login(alice)
    here = f"/projects/{project.id}/members/"
    assert client.post(f"{here}set/", {"username": "alice", "role": "viewer"}).status_code == 422
    client.post(f"{here}{Member.objects.get(user=alice).id}/remove/")
    assert project.role_of(alice) == Role.ADMIN


def test_a_member_of_another_project_cannot_be_removed_through_this_one(
    client: Client, alice: User, bob: User, project: Project
) -> None:
    other = Project.objects.create(name="other")
    member = Member.objects.create(project=other, user=bob, role=Role.VIEWER)
    client.force_login(alice)
    assert client.post(f"/projects/{project.id}/members/{member.id}/remove/").status_code == 404


def test_an_unknown_person_or_role_is_an_error_beside_the_field(client: Client, alice: User, project: Project) -> None:
    client.force_login(alice)
    page = client.post(f"/projects/{project.id}/members/set/", {"username": "nobody", "role": "boss"})
    assert page.status_code == 422 and "role" in page.context["form"].errors
    page = client.post(f"/projects/{project.id}/members/set/", {"username": "nobody", "role": "viewer"})
    assert "nobody" in page.context["form"].errors["username"][0]


def test_the_audit_trail_is_paged_by_key(client: Client, alice: User, project: Project) -> None:
    for number in range(150):
        AuditEvent.objects.create(actor_name="alice", verb="launch", target=f"run:{number}", project=project)
    client.force_login(alice)
    first = client.get(f"/projects/{project.id}/audit/")
    assert len(first.context["page"].events) == 100 and b">run 149</a>" in first.content
    second = client.get(f"/projects/{project.id}/audit/?after={first.context['page'].after}")
    assert len(second.context["page"].events) == 50 and second.context["page"].after is None
    assert client.get(f"/projects/{project.id}/audit/?after=nonsense").status_code == 200
