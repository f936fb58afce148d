"""Commands in the documents: each is one that the program takes."""

import re
import shlex
import subprocess
from pathlib import Path

import pytest
import yaml

from servetune import api
from servetune.api.study_setup import _space
from servetune.cli import derive
from servetune.cli.main import cli
from servetune.engines import engine, plan_from_settings, simulated_studies
from servetune.metrics import parse_constraints
from servetune.metrics.gate import parse_gate
from servetune.search import parse_settings

ROOT = Path(__file__).parents[2]
#: Pages of decisions quote commands of their day, generated pages those of the help.
PAGES = [
    path
    for path in (ROOT / "README.md", *sorted(ROOT.glob("docs/**/*.md")))
    if path.parent.name != "design"
]
#: Commands whose answer is arithmetic: they are run as well.
RUNS = re.compile(
    r"servetune estimate (?!.*(--sweep|all\b|--batch|--plot|--calibration|--estimator))"
)


def commands(page):
    """Commands of a page's blocks, without what a shell does around them."""
    for block in re.findall(r"^```(?:sh|bash|console)?\n(.*?)^```", page.read_text(), re.S | re.M):
        for line in block.replace("\\\n", " ").splitlines():
            command = re.sub(r"^(\$ |[A-Z_]+=\S* )+", "", line.strip())
            if re.match(r"servetune [a-z]+ ", command) and "..." not in command:
                yield " ".join(command.split())


FOUND = [(page, command) for page in PAGES for command in commands(page)]


class Parsed(Exception):
    """The command line was a request; nothing of it was done."""

    def __init__(self, request):
        super().__init__()
        self.request = request


def words_of(command):
    """Words of a command up to a comment, a pipe or a redirection."""
    lexer = shlex.shlex(command, posix=True, punctuation_chars="|<>&;")
    lexer.whitespace_split = True
    words = []
    for word in lexer:
        if set(word) <= set("|<>&;"):
            break
        words.append(word)
    return words[1:]


@pytest.fixture
def request_of(monkeypatch):
    def parsed(*arguments):
        raise Parsed(checked(*arguments))

    checked = derive.checked
    monkeypatch.setattr(derive, "checked", parsed)

    def of(command):
        with pytest.raises(Parsed) as stop:
            cli.main(words_of(command), standalone_mode=False)
        return stop.value.request

    return of


def test_commands_are_found():
    assert len(FOUND) > 60
    assert len({page for page, _ in FOUND}) > 10


@pytest.mark.parametrize(
    ("page", "command"), [pytest.param(*each, id=f"{each[0].name}: {each[1]}") for each in FOUND]
)
def test_a_command_is_one_that_the_program_takes(page, command, request_of):
    if command.startswith("servetune completion"):  # its one argument is click's
        return
    request = request_of(command)
    limits = getattr(request, "limits", None)
    if limits is not None and limits.constraints:
        parse_constraints(limits.constraints)
    if isinstance(request, api.Study):
        swept = engine(simulated_studies().get(request.engine, request.engine))
        for settings in _space(request, swept).servers():
            plan_from_settings(swept.name, request.model, settings)


@pytest.mark.parametrize(
    "command", [command for _, command in FOUND if RUNS.match(command)], ids=str
)
def test_an_estimate_of_the_documents_has_an_answer(command, called):
    done = called(*words_of(command))
    assert done.returncode in (0, 1), done.stderr
    assert done.stdout


def rows(page, heading=""):
    """Code of the first two cells of each row of the tables below a heading."""
    text = (ROOT / "docs" / "guides" / page).read_text()
    text = text.partition(f"## {heading}\n")[2].partition("\n## ")[0] if heading else text
    for line in text.splitlines():
        cells = re.split(r"(?<!\\)\|", line)
        if len(cells) == 4 and "`" in cells[1]:
            yield tuple(re.findall(r"`([^`]*)`", cell) for cell in cells[1:3])


@pytest.mark.parametrize(
    "tool", ["llm-optimizer", "vllm bench serve", "guidellm", "AIPerf", "inference-perf"]
)
def test_what_another_tools_options_become_is_taken(tool, request_of):
    tried = 0
    for _, ours in rows("coming-from.md", tool):
        for code in ours:
            if re.match(r"servetune \w+ .", code):
                request_of(code.replace("--server-args A --client-args B", ""))
            elif code.startswith("-") and " " in code:
                verb = (
                    "tune --model M" if tool == "llm-optimizer" else "bench http://localhost:8000"
                )
                request_of(f"servetune {verb} {code}")
            else:
                continue
            tried += 1
    assert tried >= 2


#: Items of the grammar's page, and their values.
SETTINGS = {
    "max_num_seqs=64": [(64,)],
    "max_num_seqs=[64,128,256]": [(64,), (128,), (256,)],
    "max_num_seqs=range(64,257,64)": [(64,), (128,), (192,), (256,)],
    "tensor_parallel_size*data_parallel_size=[(1,4),(2,2),(4,1)]": [(1, 4), (2, 2), (4, 1)],
    "enable_prefix_caching=[true,false]": [(True,), (False,)],
    "quantization=[None,fp8]": [(None,), ("fp8",)],
    "rope_theta:float=10000": [(10000.0,)],
    'speculative_config={"method":"ngram","num_speculative_tokens":3}': [
        ('{"method":"ngram","num_speculative_tokens":3}',)
    ],
}


def test_settings_of_the_grammar_have_the_values_that_its_page_says():
    shown = {code for cells, _ in rows("grammar.md", "Settings") for code in cells}
    assert shown >= SETTINGS.keys()
    types = engine("vllm").argument_types()
    for item, values in SETTINGS.items():
        (axis,) = parse_settings(item, types=types)
        assert list(axis.rows) == values, item


def test_limits_of_the_grammar_are_taken_and_mean_what_its_page_says():
    items = [code for cells, _ in rows("grammar.md", "Limits") for code in cells]
    assert len(items) >= 8
    limits = {item: parse_constraints(item)[0] for item in items}
    assert limits["itl<=50"] == limits["itl<=50ms"] == parse_constraints("itl:mean<=0.05s")[0]
    assert limits["ttft:p99<=2s"].value == 2000.0
    assert limits["tpot:p99.9<=80ms"].statistic == "p99.9"


def test_client_arguments_of_the_grammar_and_their_options_are_taken(request_of):
    for arguments, options in rows("grammar.md", "Client arguments"):
        for argument in arguments:
            study = request_of(f"servetune tune --model M --client-args {shlex.quote(argument)}")
            if "FILE" not in argument:
                assert list(_space(study, engine("vllm")).clients())
        for option in options:
            if option.startswith("-") and not option.startswith("--rate 1,2,4"):
                request_of(f"servetune simulate --model M --gpu L4 {option.replace('8,32', '8')}")


def ci_scripts(path):
    """Scripts of the steps of a workflow or a buildspec."""
    spec = yaml.safe_load(path.read_text())
    if "phases" in spec:
        return [text for phase in spec["phases"].values() for text in phase["commands"]]
    return [step["run"] for job in spec["jobs"].values() for step in job["steps"] if "run" in step]


def ci_commands(path):
    """Commands of servetune in the steps of a workflow or a buildspec, with values of variables."""
    for script in ci_scripts(path):
        for line in script.replace("\\\n", " ").splitlines():
            if line.strip().startswith("servetune "):
                command = line.strip().removesuffix(" ||")
                yield re.sub(r"\$(\w+)", lambda found: CI_VARIABLES[found[1]], command)


@pytest.mark.parametrize("name", ["github-actions.yml", "buildspec.yml"])
def test_the_examples_for_ci_compare_also_after_runs_that_failed(name, tmp_path):
    """Each script but that of the gate ends well where every `servetune` ends with 3."""
    failing = "servetune() { return 3; }\nGITHUB_STEP_SUMMARY=summary.md\n"
    codes = [
        subprocess.run(
            ["bash", "-e", "-c", failing + script], cwd=tmp_path, capture_output=True, check=False
        ).returncode
        for script in ci_scripts(ROOT / "examples" / "ci" / name)
        if "pip install" not in script
    ]
    assert codes == [0, 3, 0][: len(codes)]


CI_VARIABLES = {
    "seed": "1",
    "BASE_URL": "http://a",
    "NEW_URL": "http://b",
    "BASE_ENDPOINT": "a",
    "NEW_ENDPOINT": "b",
    "MODEL": "m",
}


@pytest.mark.parametrize("name", ["github-actions.yml", "buildspec.yml"])
def test_the_examples_for_ci_measure_both_sides_with_equal_seeds_and_gate_them(name, request_of):
    requests = [request_of(command) for command in ci_commands(ROOT / "examples" / "ci" / name)]
    base, new, gate = requests
    assert isinstance(base, api.Bench)
    assert isinstance(gate, api.Compare)
    assert (base.load, base.seed) == (new.load, new.seed)
    assert (base.server.urls, base.endpoint.sagemaker) != (new.server.urls, new.endpoint.sagemaker)
    assert [request.results.out.parts[0] for request in (base, new)] == [gate.base, gate.new]
    assert len(parse_gate(gate.fail_on)) == 2
    assert gate.junit.suffix == ".xml"
