"""`transformers serve MODEL`: the reference implementation as a server, small and strict."""

from __future__ import annotations

from types import MappingProxyType

from servetune.engines.command_line import CommandLineEngine
from servetune.engines.engine import FirstCompletion
from servetune.engines.program import Program
from servetune.engines.transformers.declarations import DECLARATIONS
from servetune.engines.transformers.shipping import SHIPPING
from servetune.engines.transformers.words import WORDS
from servetune.plan.plan import Plan, Setting


class TransformersServe(CommandLineEngine):
    """transformers 5.x with the extra `serving`.

    Its traps: a member of the body that it does not know is answered with 422, so nothing
    like `ignore_eos` may be sent; the stream ends without `[DONE]`; there are no metrics; and
    `/v1/models` lists the hub's cache, not what is served, so the model is asked for by the
    name that it was started with.
    """

    name = "transformers"
    image_word = "transformers"
    words = WORDS
    shipping = SHIPPING
    declarations = DECLARATIONS
    program = Program(
        title="transformers serve",
        command="transformers",
        variable="SERVETUNE_TRANSFORMERS",
        install="pip install 'transformers[serving]'",
        packages=("transformers",),
        version_words=("version",),
    )
    start = ("serve",)
    metrics_path = None
    # Token ids are no prompt there, and `ignore_eos` is a member that it does not know.
    client_args = MappingProxyType({"backend": "openai-chat", "disable_ignore_eos": "True"})
    decided_here = frozenset({"model", "force_model", "host", "port"})

    def plan_settings(self, plan: Plan, version: str | None = None) -> dict[str, Setting]:
        """Settings of continuous batching turn it on; unasked it serves one after another."""
        settings = self.words.settings(plan, self.name)
        if any(name.startswith("cb_") for name in settings):
            settings = {"continuous_batching": True, **settings}
        return settings

    def served_name(self, plan: Plan) -> str | None:
        return plan.model

    def first_completion(self, model: str) -> FirstCompletion:
        return FirstCompletion(
            path="/v1/chat/completions",
            body={
                "model": model,
                "messages": [{"role": "user", "content": "Hello"}],
                "max_tokens": 2,
            },
        )
