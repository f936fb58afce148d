"""Pages of finished and running trials over HTTP, on the loopback address alone."""

from servetune.ui.library import Library
from servetune.ui.run import PageRenderer, RunRow
from servetune.ui.serving import require_installed, serve

__all__ = ["Library", "PageRenderer", "RunRow", "require_installed", "serve"]
