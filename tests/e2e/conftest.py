"""Where the doubles are, and a tiny model's configuration, all that a simulated run needs."""

import json
import sys
from pathlib import Path

import pytest

# Makes the doubles of other rooms importable; pytest's importlib mode does not.
for _folder in ("e2e", "loadgen", "deploy"):
    sys.path.insert(0, str(Path(__file__).parents[1] / _folder))

TINY = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "hidden_size": 128,
    "intermediate_size": 384,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 32,
    "vocab_size": 4096,
    "max_position_embeddings": 8192,
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
}


@pytest.fixture
def tiny(tmp_path):
    """A folder `tiny` with the configuration alone, in the test's own folder."""
    folder = tmp_path / "tiny"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(TINY))
    return folder
