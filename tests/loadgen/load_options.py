"""Load of a test, beside its event loop; keyword arguments sorted into settings and hooks."""

import asyncio
import contextlib

import msgspec

from servetune.errors import ServetuneError
from servetune.loadgen.run import LoadHooks, LoadSettings, run_load_blocking


async def run_load(*args, hooks=None, **options):
    """`run_load_blocking` in a thread; cancelling it ends the run."""
    hooks = hooks or LoadHooks()
    work = asyncio.ensure_future(
        asyncio.to_thread(run_load_blocking, *args, hooks=hooks, **options)
    )
    try:
        return await asyncio.shield(work)
    except asyncio.CancelledError:
        hooks.halt.set()
        with contextlib.suppress(ServetuneError):
            await work
        raise


def load_options(settings=None, **options):
    def taken(kind):
        return {name: options.pop(name) for name in kind.__struct_fields__ if name in options}

    return {
        "hooks": LoadHooks(**taken(LoadHooks)),
        "settings": msgspec.structs.replace(settings or LoadSettings(), **taken(LoadSettings)),
        **options,
    }
