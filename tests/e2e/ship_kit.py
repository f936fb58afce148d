"""What the tests of shipping share: credentials that must never be seen, and a way to look."""

import os

from doubles import FakeAws

MODEL = "Qwen/Qwen3-4B"
ENDPOINT = "servetune-Qwen-Qwen3-4B"
ROLE = "arn:aws:iam::123456789012:role/SageMakerExecution"
INSTANCE = "ml.g6.12xlarge"

#: Credentials by the variable that holds them; none is anybody's.
PLANTED = {
    "HF_TOKEN": "hf_" + "PlantedTokenOfNobody0" * 2,
    "AWS_ACCESS_KEY_ID": "AKIA" + "PLANTED0" * 2,
    "AWS_SECRET_ACCESS_KEY": "planted/Secret+Access/Key/that/has/no/form",
    "AWS_SESSION_TOKEN": "planted-session-token-4711-0815==",
    "SAGEMAKER_BEARER_TOKEN": "planted-bearer-token-of-this-test",
    "OPENAI_API_KEY": "sk-" + "planted0" * 4,
}
#: Which of them must be found nowhere; an access key's id is no secret, and is hidden all the same.
SECRETS = tuple(PLANTED.values())


def doubles():
    """Doubles that take the planted credentials and no others."""
    double = FakeAws(look_s=120.0)
    double.control.quota[INSTANCE] = 4
    access = PLANTED["AWS_ACCESS_KEY_ID"]
    double.runtime.secrets = {
        access: (PLANTED["AWS_SECRET_ACCESS_KEY"], PLANTED["AWS_SESSION_TOKEN"])
    }
    return double


def environment(double):
    return os.environ | double.environ | PLANTED | {"SAGEMAKER_ROLE_ARN": ROLE, "NO_COLOR": "1"}


class Shell:
    """Commands as a user runs them, and all that they said.

    `bench`, which times, is a process; the others run in this one where `called` is given.

    Attributes:
        said: stdout and stderr of each command, in order.
    """

    def __init__(self, servetune, double, called=None):
        self._servetune, self._environment = servetune, environment(double)
        self._called = called or servetune
        self.said = []

    def __call__(self, *words, code=0, timeout_s=300):
        run = self._servetune if words[0] == "bench" else self._called
        done = run(*words, env=self._environment, timeout_s=timeout_s)
        self.said += [done.stdout, done.stderr]
        assert code is None or done.returncode == code, f"{words}: {done.stdout}\n{done.stderr}"
        assert code is not None or done.returncode in (0, 1), done.stderr
        assert "Traceback" not in done.stderr
        return done


def seen_secrets(folder, said=()):
    """Planted credentials in a file below a folder, or in a text; each with its place."""
    texts = [(f"said {number}", text.encode()) for number, text in enumerate(said)]
    texts += [(str(path), path.read_bytes()) for path in folder.rglob("*") if path.is_file()]
    return [(place, secret) for place, raw in texts for secret in SECRETS if secret.encode() in raw]


def standing(double):
    """Everything that is left in any service of the doubles, and would cost or confuse."""
    beside, jobs = double.services, double.jobs
    return [
        *double.control.rows, *beside.targets, *beside.policies, *beside.alarms, *jobs.jobs,
        *jobs.workloads,
    ]  # fmt: skip
