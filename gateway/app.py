"""The FastAPI application: routes, errors, limits. It is handed a `Gateway` and starts nothing itself."""

from __future__ import annotations

from fastapi import FastAPI

from gateway import errors
from gateway.context import Gateway
from gateway.limits import BodyLimit
from gateway.routes import files, health, jobs, reads

DESCRIPTION = """Submit, watch and steer RL post-training jobs, and read what became of every sample.

Every refusal is `{"error": "one line"}`; a job file with problems also gets `"errors": [{"path", "message"}]`.
"""


def create_app(gateway: Gateway) -> FastAPI:
    app = FastAPI(title="Slipstream", version="1", description=DESCRIPTION)
    app.state.gateway = gateway
    app.add_middleware(BodyLimit, max_bytes=gateway.settings.max_body_bytes)
    errors.install(app)
    for router in (jobs.router, reads.router, files.router, health.router):
        app.include_router(router)
    return app
