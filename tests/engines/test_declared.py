"""Settings read off sources, off help texts and off bundled tables: three ways to one answer."""

import ast
import tomllib
from pathlib import Path

import pytest

from servetune.engines import engine
from servetune.engines.declared import (
    annotated_fields,
    argparse_settings,
    click_settings,
    literal_aliases,
    typer_settings,
)
from servetune.engines.llama_cpp.helptext import llama_settings
from servetune.engines.settings import SettingSpec, SettingTable
from servetune.engines.sources import read_declarations
from servetune.engines.tables import known_versions, read_spec, table_of, written_spec
from servetune.errors import PlanError

DATA = Path(__file__).parents[2] / "src" / "servetune" / "engines"


def specs(found):
    return {name: written_spec(spec) for name, spec in found.items()}


def test_argparse_calls_tell_types_choices_switches_and_other_names():
    tree = ast.parse("""
parser.add_argument("model")
parser.add_argument("--tp-size", "--tensor-parallel-size", type=int, default=1)
parser.add_argument("--share", default=0.9)
parser.add_argument("--dtype", type=str, choices=["auto", "half"])
parser.add_argument("--backend", choices=BACKENDS)
parser.add_argument("--eager", action="store_true")
parser.add_argument("--cache", action=argparse.BooleanOptionalAction)
parser.add_argument("--config", type=json.loads)
parser.add_argument("--odd", type=some_function)
BACKENDS = ["a", "b"]
""")
    assert specs(argparse_settings(tree, literal_aliases([tree]))) == {
        "tp_size": "int aka tensor_parallel_size",
        "share": "float",
        "dtype": "str of auto|half",
        "backend": "str of a|b",
        "eager": "bool",
        "cache": "bool no",
        "config": "json",
        "odd": "str",
    }


def test_fields_tell_ranges_and_what_is_no_option():
    tree = ast.parse("""
CacheDType = Literal["auto", "fp8"]
class Args:
    \"\"\"Fields.\"\"\"
    seqs: int = Field(default=None, ge=1, le=9)
    block: int | None = Field(default=None, gt=0)
    share: float = Field(default=0.9, gt=0, le=1)
    cache: CacheDType = "auto"
    rank: Literal[1, 8] = 8
    names: list[str] | None = None
    limits: dict[str, int] = None
    either: int | str = 1
    size: A[Optional[int], Arg(help="x", aliases=["--other-size"])] = None
    hidden: A[bool, Arg(no_cli=True)] = False
    _own: int = 0
""")
    assert specs(annotated_fields(tree, literal_aliases([tree]))) == {
        "seqs": "int >=1 <=9",
        "block": "int >=1",
        "share": "float >=0 <=1",
        "cache": "str of auto|fp8",
        "rank": "int of 1|8",
        "names": "str",
        "limits": "json",
        "either": "str",
        "size": "int aka other_size",
    }


def test_click_and_typer_options_are_read():
    tree = ast.parse("""
@click.option("--max_batch_size", type=int, default=8)
@click.option("--backend", type=click.Choice(["pytorch", "trt"]))
@click.option("--chunked", is_flag=True)
@click.option("--cascade/--no-cascade", default=False)
def serve(): ...
class Serve:
    def __init__(self, model: Annotated[str, typer.Argument()] = None,
                 share: Annotated[float | None, typer.Option(help="x")] = None,
                 graphs: Annotated[bool | None, typer.Option()] = None): ...
""")
    assert specs(click_settings(tree)) == {
        "max_batch_size": "int",
        "backend": "str of pytorch|trt",
        "chunked": "bool",
        "cascade": "bool no",
    }
    assert specs(typer_settings(tree, "Serve")) == {"share": "float", "graphs": "bool no"}


def test_a_source_that_cannot_be_read_leaves_the_table(tmp_path):
    folder = tmp_path / "transformers" / "cli"
    folder.mkdir(parents=True)
    (folder / "serve.py").write_text("class Serve: def broken(")
    assert read_declarations(engine("transformers").declarations, tmp_path) == {}
    assert read_declarations(engine("tgi").declarations, tmp_path) == {}


def test_llama_servers_help_is_read():
    found = llama_settings("""
----- common params -----

-np,   --parallel N                     number of server slots (default: -1, -1 = auto)
                                        (env: LLAMA_ARG_N_PARALLEL)
--temp, --temperature N                 temperature (default: 0.80)
-ctk,  --cache-type-k TYPE              KV cache data type for K
                                        allowed values: f32, f16, q8_0
                                        (default: f16)
-fa,   --flash-attn [on|off|auto]       set Flash Attention use (default: 'auto')
-kvu,  --kv-unified, -no-kvu, --no-kv-unified
                                        use single unified KV buffer
--metrics                               enable prometheus compatible metrics endpoint
-ngl,  --gpu-layers, --n-gpu-layers N   max. number of layers to store in VRAM, either an exact
                                        number, 'auto', or 'all' (default: auto)
""")
    assert specs(found) == {
        "parallel": "int",
        "temp": "float aka temperature",
        "cache_type_k": "str of f32|f16|q8_0",
        "flash_attn": "str of on|off|auto",
        "kv_unified": "bool no",
        "metrics": "bool",
        "gpu_layers": "str aka n_gpu_layers",
    }


def test_a_table_is_read_as_it_was_written():
    for path in sorted(DATA.glob("*/settings.toml")):
        for part in tomllib.loads(path.read_text())["versions"]:
            for name, text in part["settings"].items():
                assert written_spec(read_spec(name, text)) == text


def test_versions_stand_newest_first_and_differ_as_they_say():
    for path in sorted(DATA.glob("*/settings.toml")):
        parts = tomllib.loads(path.read_text())["versions"]
        newest = parts[0]["settings"]
        for part in parts[1:]:
            assert set(part["without"]) <= set(newest), part["version"]
            table = table_of(path.parent.name, part["version"])
            assert not set(part["without"]) & set(table.settings)
            assert set(part["settings"]) <= set(table.settings)


@pytest.mark.parametrize(
    ("asked", "nearest", "exact"),
    [
        ("0.33.0", "0.33.0", True),
        ("0.32.0+cpu", "0.32.0", True),
        ("0.32.4", "0.32.0", False),
        ("0.99.0", "0.33.0", False),
        ("0.8.5.post1", "0.31.0", False),
        (None, "0.33.0", False),
    ],
)
def test_an_unknown_version_gets_the_nearest_that_is_not_newer(asked, nearest, exact):
    table = table_of("vllm", asked)
    assert (table.version, table.exact) == (nearest, exact)
    assert known_versions("vllm")[0] == "0.33.0"


TABLE = SettingTable(
    version="1.0",
    source="here",
    exact=True,
    settings={
        "max_seqs": SettingSpec(name="max_seqs", kind="int", minimum=1, aliases=("ms",)),
        "share": SettingSpec(name="share", kind="float", maximum=1),
        "dtype": SettingSpec(name="dtype", kind="str", choices=("auto", "half")),
        "eager": SettingSpec(name="eager", kind="bool"),
        "note": SettingSpec(name="note", kind="json"),
    },
)


@pytest.mark.parametrize(
    ("name", "value", "problem"),
    [
        ("max_seqs", 0, "E's max_seqs is 1 or more, got 0"),
        ("ms", 0, "E's max_seqs is 1 or more, got 0"),
        ("max-seqs", 1.5, "E's max_seqs takes a whole number, got 1.5"),
        ("max_seqs", True, "E's max_seqs takes a whole number, got True"),
        ("share", 1.5, "E's share is 1 or less, got 1.5"),
        ("dtype", "int3", "E's dtype is one of auto, half, got 'int3'"),
        ("eager", "maybe", "E's eager is true or false, got 'maybe'"),
        ("max_seq", 4, "E 1.0 has no setting max_seq"),
    ],
)
def test_what_an_engine_would_refuse_is_refused_before(name, value, problem):
    with pytest.raises(PlanError) as caught:
        TABLE.check("E", {name: value})
    assert caught.value.message == problem
    assert caught.value.hint


@pytest.mark.parametrize(
    ("name", "value"),
    [("max_seqs", 1), ("max_seqs", "4k"), ("share", 1), ("dtype", None), ("note", "{}")],
)
def test_what_an_engine_takes_is_let_through(name, value):
    assert TABLE.check("E", {name: value}) == ()


def test_the_table_of_vllm_is_what_its_own_help_says(shared):
    """The syntax tree against the text that the running program printed."""
    text = (shared / "reference" / "engines" / "vllm-0.32-serve-help.txt").read_text()
    told = {
        line.split()[0].rstrip(",").removeprefix("--").replace("-", "_")
        for line in text.splitlines()
        if line.startswith("  --")
    }
    table = table_of("vllm", "0.32.0")
    assert told == set(table.settings)
