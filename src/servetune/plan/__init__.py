"""Plans: how a model is served, in words of no engine."""

from servetune.plan.plan import Plan, Setting

__all__ = ["Plan", "Setting"]
