"""How long it takes to prepare a load test, and how much memory: one process for each case.

python benchmarks/workload/prepare.py FOLDER        a model's folder, with its tokenizer.json
python benchmarks/workload/prepare.py --train       a vocabulary of 50,000, trained on Python's
                                                    own sources (needs the extra tokenizers)
"""

import resource
import subprocess
import sys
import sysconfig
import tempfile
import time
from pathlib import Path

CASES = (
    # label, requests, input tokens, api, everything encoded
    ("1,000 x 300", 1000, "300", "completions", False),
    ("10,000 x 1,024", 10_000, "1024", "completions", False),
    ("10,000 x 1,024, chat", 10_000, "1024", "chat", False),
    ("10,000 x 1,024, all encoded", 10_000, "1024", "completions", True),
    ("2 x 1,000,000", 2, "1000000", "completions", False),
)


def train(folder: Path) -> None:
    import tokenizers

    made = tokenizers.Tokenizer(tokenizers.models.BPE())
    made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    sources = sorted(Path(sysconfig.get_path("stdlib")).glob("**/*.py"))[:2500]
    made.train_from_iterator(
        (path.read_text(encoding="utf-8", errors="ignore") for path in sources),
        tokenizers.trainers.BpeTrainer(
            vocab_size=50_000,
            initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        ),
    )
    made.save(str(folder / "tokenizer.json"))
    (folder / "chat_template.jinja").write_text(
        "{% for m in messages %}<|{{ m.role }}|>\n{{ m.content }}\n{% endfor %}<|assistant|>\n"
    )


def case(number: int, folder: str) -> None:
    start_s = time.perf_counter()
    import msgspec

    from servetune.workload.model_tokenizer import load_model_tokenizer
    from servetune.workload.prepare import prepare
    from servetune.workload.workload import one_part

    imported_s = time.perf_counter()
    label, requests, tokens, api, check_all = CASES[number]
    model = load_model_tokenizer(folder)
    loaded_s = time.perf_counter()
    spec = msgspec.structs.replace(one_part(tokens, 128), request_count=requests)
    made = prepare(msgspec.structs.replace(spec, api=api), tokenizer=model, check_all=check_all)
    end_s = time.perf_counter()
    peak_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6
    print(
        f"| {label} | {imported_s - start_s:.2f} | {loaded_s - imported_s:.2f} | "
        f"{end_s - loaded_s:.2f} | {made.about.checked:,} | {peak_mb:.0f} |"
    )


def main() -> None:
    if len(sys.argv) == 3 and sys.argv[1] == "train":
        train(Path(sys.argv[2]))
        return
    if len(sys.argv) == 3:
        case(int(sys.argv[1]), sys.argv[2])
        return
    with tempfile.TemporaryDirectory() as scratch:
        folder = sys.argv[1] if len(sys.argv) > 1 else "--train"
        if folder == "--train":
            # In a process of its own: what starts a process passes its peak of memory on.
            subprocess.run([sys.executable, __file__, "train", scratch], check=True)
            folder = scratch
        print("| prompts | import s | tokenizer s | prepare s | encoded whole | peak MB |")
        print("|---|---|---|---|---|---|", flush=True)
        for number in range(len(CASES)):
            subprocess.run([sys.executable, __file__, str(number), folder], check=True)


if __name__ == "__main__":
    main()
