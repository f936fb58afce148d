"""Keyword arguments of a test's load, sorted into the settings and the hooks of `run_load`."""

import msgspec

from servetune.loadgen.run import LoadHooks, LoadSettings


def load_options(settings=None, **options):
    def taken(kind):
        return {name: options.pop(name) for name in kind.__struct_fields__ if name in options}

    return {
        "hooks": LoadHooks(**taken(LoadHooks)),
        "settings": msgspec.structs.replace(settings or LoadSettings(), **taken(LoadSettings)),
        **options,
    }
