"""Containers of SageMaker: families of images that take an engine's settings as variables."""

from __future__ import annotations

import typing
from collections.abc import Callable, Mapping
from types import MappingProxyType

import msgspec

from servetune.engines.engine import engine
from servetune.engines.words import Settings
from servetune.errors import CannotRender
from servetune.hardware.device import Device
from servetune.plan.plan import Plan, Setting


class Image(msgspec.Struct, frozen=True, kw_only=True):
    """One container image.

    Attributes:
        tag: Tag in the container's repository.
        engine_version: Version of the engine inside; `None` for a tag that no table has.
        cuda: CUDA version as the tag spells it, `cu130`; it decides which driver the host needs.
        release: The container's own version where its conventions changed with it (LMI).
        automatic: Whether it may be chosen for a user who named no image.
    """

    tag: str
    cuda: str
    engine_version: str | None = None
    release: int | None = None
    automatic: bool = True


def plain_settings(plan: Plan, version: str | None = None) -> Settings:
    """The engine's settings, with `no_x=true` said as `x=false`.

    Raises:
        CannotRender: A setting and its negative are both there and disagree.
    """
    settings: Settings = {}
    for name, value in engine(plan.engine).plan_settings(plan, version).items():
        plain, meant = name, value
        if name.startswith("no_") and isinstance(value, bool):
            plain, meant = name.removeprefix("no_"), not value
        if settings.get(plain, meant) != meant:
            raise CannotRender(f"the plan says both {plain}={settings[plain]} and {name}={value}")
        settings[plain] = meant
    return settings


def _nothing_further(_: Settings, __: Mapping[str, str]) -> dict[str, Setting]:
    return {}


class Container(msgspec.Struct, frozen=True, kw_only=True):
    """A family of images that take their settings in one way.

    Attributes:
        name: Name in options.
        title: Name in messages and tables.
        repository: Repository of the images in the region's registry.
        dialect: Engine whose setting names it takes; a key of `engines.ENGINES`.
        prefix: Prefix of an environment variable that holds a setting; empty where no variable
            does.
        foreign: Beginnings of variables that are no settings, where `prefix` does not tell.
        model_key: Variable that says where the model is.
        renamed: Settings that are not spelt prefix and upper-case name.
        fixed: Variables that select the engine and its mode, written always.
        fill: The Plan with nothing open, and what to say about it; of a device, the requests in
            flight and the engine's version, which is empty where no table knows it.
        to_settings: The Plan's settings as this container wants them; raises CannotRender
            for what it cannot say.
        own: Variables beside the settings (copies, queue, time-out) of a Plan, its
            concurrency and the seconds that loading may take.
        read: The other way: fields of a Plan out of settings, from which it takes them, and of
            variables.
        copies: Replicas that an environment asks for.
        own_keys: Variables of `own` that bear the prefix and are no settings.
        off: Spelling of `false`: as a `value`, as a `negative` name, or not at all (`silence`).
        in_log: Pattern of a setting in the engine's log, with `{name}` and `{value}`.
        copies_note: Sentence on how the container runs several copies.
        shares_out: Whether one server distributes requests to its copies.
        knows_caches: Whether SageMaker learns from it which server has a prompt's prefix.
        python_words: Whether its log writes `True` and `False` as Python does.
        version_pattern: Pattern of the engine's version, as its first group, in the tag of an image
            that no table knows; it matches nothing where tags do not tell.
        usual_max_num_seqs: Sequences of a batch that it sets where nothing is said; `None` for the
            engine's own.
        able: Whether an image can say all of a Plan, where another may.
    """

    name: str
    title: str
    repository: str
    dialect: str
    prefix: str
    model_key: str
    to_settings: Callable[[Plan, Image], Settings]
    fill: Callable[[Plan, Device, int, str], tuple[Plan, list[str]]]
    off: typing.Literal["value", "negative", "silence"]
    copies_note: str
    renamed: Mapping[str, str] = MappingProxyType({})
    fixed: Mapping[str, str] = MappingProxyType({})
    own: Callable[[Plan, int, int], dict[str, str]] = lambda _plan, _concurrency, _timeout_s: {}
    copies: Callable[[Mapping[str, str]], int] = lambda _variables: 1
    own_keys: frozenset[str] = frozenset()
    foreign: tuple[str, ...] = ()
    read: Callable[[Settings, Mapping[str, str]], dict[str, Setting]] = _nothing_further
    in_log: str = "{name}={value}"
    shares_out: bool = False
    knows_caches: bool = False
    python_words: bool = True
    version_pattern: str = r"(?!)"
    usual_max_num_seqs: int | None = None
    able: Callable[[Plan, Image], bool] = lambda _plan, _image: True

    def key(self, setting: str) -> str:
        """The variable that holds an engine's setting."""
        return self.prefix + self.renamed.get(setting, setting.upper())

    def setting(self, key: str) -> str:
        """The engine's setting that a variable holds."""
        name = key.removeprefix(self.prefix)
        return {spelt: own for own, spelt in self.renamed.items()}.get(name, name.lower())

    def holds_setting(self, key: str) -> bool:
        """Whether a variable is a setting of the engine."""
        if key == self.model_key or key in self.fixed or key in self.own_keys:
            return False
        if key in {self.prefix + spelt for spelt in self.renamed.values()}:
            return True
        return key.startswith(self.prefix) and not key.startswith(self.foreign or ("\0",))


#: The entry points set these themselves; a second one would contradict them.
_OCCUPIED = frozenset({"host", "port", "model", "model_path", "uds"})
#: Settings of a front end of several processes. AWS's entry points start one
#: (`python3 -m vllm.entrypoints.openai.api_server` in its sagemaker_entrypoint.sh, 2026).
_ONE_PROCESS = frozenset({"api_server_count"})


def refuse_occupied(settings: Settings) -> Settings:
    for name in settings:
        if name in _ONE_PROCESS and settings[name] != 1:
            raise CannotRender(
                f"the container starts one API server, whatever '{name}' says",
                hint="leave it out; with a stream_interval one server streams more tokens",
            )
        if name in _OCCUPIED:
            raise CannotRender(
                f"'{name}' belongs to the container, which listens where SageMaker calls it",
                hint="leave it out",
            )
    return settings


def one_server(plan: Plan) -> Plan:
    """Copies as data parallel ranks of one server, which is all that a container runs."""
    copies = plan.replicas * plan.data_parallel
    return msgspec.structs.replace(plan, replicas=1, data_parallel=copies)
