import importlib.util
import os
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SHARED = Path(os.environ.get("SERVETUNE_SHARED", ROOT.parent / "shared"))
HELP_TEXT = SHARED / "reference" / "engines" / "vllm-0.32-serve-help.txt"

HELP = """usage: vllm serve [model_tag] [options]

positional arguments:
  model_tag             The model tag to serve (default: None)

options:
  --headless            Run without a head. (default: False)
  --dtype {auto,half}   A type. (default: auto)
  --widgets WIDGETS, -w WIDGETS
                        How many. They come in packs
                        of twelve. (default: 12)
  --share SHARE         Which part. (default: 0.9)
  --async-widgets, --no-async-widgets
                        Whether to wait. (default: None)
  --rank {1,8,16}       A rank. (default: 16)

CacheConfig:
  Words about the cache, with --dashes in them.

  --widget-config WIDGET_CONFIG
                        Should either be a valid JSON string or keys. (default: None)
  --max-num-seqs MAX_NUM_SEQS
                        Sequences. (default: None)
"""


@pytest.fixture(scope="module")
def tool():
    path = ROOT / "tools" / "distil_vllm_help.py"
    spec = importlib.util.spec_from_file_location("distil_vllm_help", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_types_are_read_off_defaults_choices_twins_and_words(tool):
    table = tomllib.loads(tool.distil(HELP, "1.2.3"))
    assert table == {
        "version": "1.2.3",
        "negatable": ["async_widgets"],
        "types": {
            "async_widgets": "bool",
            "dtype": "str",
            "headless": "bool",
            "max_num_seqs": "int",
            "rank": "int",
            "share": "float",
            "widget_config": "json",
            "widgets": "int",
        },
    }


@pytest.mark.skipif(not HELP_TEXT.exists(), reason="needs the shared reference folder")
def test_the_bundled_table_is_what_the_tool_makes_of_vllms_help(tool):
    bundled = ROOT / "src" / "servetune" / "engines" / "data" / "vllm_arguments.toml"
    assert tool.distil(HELP_TEXT.read_text(), "0.32.0") == bundled.read_text()
