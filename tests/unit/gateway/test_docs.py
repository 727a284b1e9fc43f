"""The pages say what is there."""

import argparse
from pathlib import Path

from gateway.app import create_app
from gateway.config import Settings
from gateway.context import Gateway

DOCS = Path(__file__).resolve().parents[3] / "docs"


def test_every_address_is_on_its_page():
    page = (DOCS / "http-api.md").read_text()
    for path in create_app(Gateway(Settings())).openapi()["paths"]:
        shown = path.replace("{job}", "JOB").replace("{group}", "GROUP").replace("{index}", "INDEX")
        shown = shown.replace("{checkpoint}", "CHECKPOINT").replace("{name}", "NAME").removeprefix("/v1/jobs/JOB")
        assert shown in page, path


def test_every_command_is_on_its_page():
    from slipstream.__main__ import parser

    page = (DOCS / "cli.md").read_text()
    (commands,) = [a for a in parser()._actions if isinstance(a, argparse._SubParsersAction)]
    for name in commands.choices:
        assert f"`{name}" in page or f", {name}" in page, name
