from django.urls import path

from rlviewer.accounts import styleguide, views

urlpatterns = [
    path("sign-in/", views.sign_in, name="sign-in"),
    path("sign-out/", views.sign_out, name="sign-out"),
    path("account/", views.account, name="account"),
    path("account/password/", views.account_password, name="account-password"),
    path("account/sign-out-everywhere/", views.account_sign_out, name="account-sign-out"),
    path("account/tokens/", views.token_create, name="token-create"),
    path("account/tokens/<int:token_id>/revoke/", views.token_revoke, name="token-revoke"),
    path("people/", views.people, name="people"),
    path("people/add/", views.person_add, name="person-add"),
    path("people/<int:user_id>/reset-password/", views.person_reset, name="person-reset"),
    path("people/<int:user_id>/sign-out/", views.person_sign_out, name="person-sign-out"),
    path("people/<int:user_id>/active/", views.person_active, name="person-active"),
    path("audit/", views.audit, name="audit"),
    path("projects/new/", views.project_create, name="project-create"),
    path("projects/<int:project_id>/members/", views.project_members, name="project-members"),
    path("projects/<int:project_id>/members/set/", views.member_set, name="member-set"),
    path("projects/<int:project_id>/members/<int:member_id>/remove/", views.member_remove, name="member-remove"),
    path("projects/<int:project_id>/audit/", views.project_audit, name="project-audit"),
    path("_styleguide/", styleguide.styleguide, name="styleguide"),
]
