"""How the rollout service's parts hang together: one worker with one engine and one store of weights."""

from __future__ import annotations

import asyncio

import httpx

from services.rollout.config import Settings
from services.rollout.engine import Engine
from services.rollout.weights import WeightsStore, sweep_dead
from services.rollout.worker import Worker
from shared.wire.service import Service


async def serve(service: Service[Settings]) -> None:
    settings = service.settings
    caches = settings.data_dir / "rollout-cache"
    cache = settings.cache_dir or caches / service.id
    await asyncio.to_thread(sweep_dead, caches, service.id)
    async with httpx.AsyncClient(trust_env=False, follow_redirects=True) as http:
        store = WeightsStore(cache.absolute(), http)
        worker = Worker(service, Engine(settings), store)
        service.loop(worker.follow_jobs(), "follow jobs")
        service.loop(worker.report(), "report")
        try:
            await worker.run()
        finally:
            if settings.cache_dir is None:  # under a name of its own, so that nobody else will use it
                store.clear()
