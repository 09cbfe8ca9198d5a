"""Template filters that show numbers the same way everywhere."""

from django import template

register = template.Library()
