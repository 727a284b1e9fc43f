"""Every page that README and docs point to is there, and every page is pointed to from README."""

import re
from pathlib import Path

import pytest

PROJECT = Path(__file__).resolve().parents[3]
PAGES = [PROJECT / "README.md", *sorted((PROJECT / "docs").glob("*.md"))]
LINK = re.compile(r"\]\((?!https?://|#)([^)#\s]+)")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_relative_link_leads_somewhere(page):
    missing = [link for link in LINK.findall(page.read_text()) if not (page.parent / link).exists()]
    assert missing == []


def test_readme_leads_to_every_page():
    linked = {(PROJECT / link).resolve() for link in LINK.findall((PROJECT / "README.md").read_text())}
    assert [page.name for page in PAGES[1:] if page not in linked] == []


def test_readme_names_every_service_of_the_picture():
    text = (PROJECT / "README.md").read_text()
    for name in ("gateway", "scheduler", "rollout", "reward", "replay-buffer", "trainer", "weight-broadcast"):
        assert name in text
