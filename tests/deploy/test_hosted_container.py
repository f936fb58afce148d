"""What a container was given, found from an endpoint's or a component's name."""

import msgspec
import pytest
from aws_kit import NAME, change_in, components, deployment

from servetune.deploy.aws import apply
from servetune.deploy.aws.hosted_container import Hosted, hosted, hosted_plan
from servetune.deploy.hosting import Adapter
from servetune.errors import DeployError

LMI = "763104351884.dkr.ecr.us-east-1.amazonaws.com/djl-inference:0.36.0-lmi28.0.0-cu130"


def made(world, hosting=None):
    world.run(apply(deployment(hosting), change_in(world)))


def test_an_endpoint_leads_to_the_variables_of_its_model(world):
    made(world)
    found = world.run(hosted(world.aws(), NAME))
    assert found.image.rpartition("/")[2].startswith("djl-inference:")
    assert found.environment["OPTION_MAX_ROLLING_BATCH_SIZE"] == "128"
    assert 1.7e9 <= found.since_s < world.clock.now_s()
    plan = hosted_plan(found)
    assert (plan.max_num_seqs, plan.tensor_parallel, plan.max_model_len) == (128, 4, 4096)


def test_a_component_and_an_adapter_on_it_lead_there_too(world):
    adapter = Adapter(name="fr", artifact_url="s3://bucket/fr.tar.gz")
    made(world, components(adapters=(adapter,)))
    base = world.run(hosted(world.aws(), NAME, "qwen-base"))
    assert hosted_plan(base).max_num_seqs == 128
    onto = world.run(hosted(world.aws(), NAME, "qwen-fr"))
    assert onto.environment == base.environment
    assert world.run(hosted(world.aws(), NAME)) is None  # it has no model of its own


@pytest.mark.parametrize("component", ["", "nothing"])
def test_what_is_not_there_has_none(world, component):
    assert world.run(hosted(world.aws(), "nowhere", component)) is None


def test_what_lmi_was_not_told_is_its_own_default_and_not_vllms():
    given = Hosted(image=LMI, environment={"HF_MODEL_ID": "Qwen/Qwen3-4B"})
    assert hosted_plan(given).max_num_seqs == 32
    dlc = Hosted(
        image="763104351884.dkr.ecr.us-east-1.amazonaws.com/vllm:0.27.1-gpu",
        environment={"SM_VLLM_MODEL": "Qwen/Qwen3-4B"},
    )
    assert hosted_plan(dlc).max_num_seqs is None


def test_another_image_is_not_guessed_at_and_a_wrong_variable_is_reported():
    given = Hosted(image=LMI, environment={"HF_MODEL_ID": "m"})
    own = msgspec.structs.replace(given, image="1.dkr.ecr.us-east-1.amazonaws.com/my-vllm:1")
    assert hosted_plan(own) is None
    wrong = {"HF_MODEL_ID": "m", "OPTION_MAX_MODEL_LEN": "long"}
    with pytest.raises(DeployError, match="wrong value"):
        hosted_plan(msgspec.structs.replace(given, environment=wrong))
