import re

import pytest

from servetune.deploy.images import (
    ami_version,
    choose_image,
    image_uri,
    images,
    named_image,
    regions,
    version_key,
)
from servetune.errors import DeployError, UnknownName


@pytest.mark.parametrize(
    ("measured", "tag"),
    [
        ("0.11.1", "0.35.0-lmi17.0.0-cu128"),  # the same
        ("0.11.0", "0.35.0-lmi17.0.0-cu128"),  # the next that is not older
        ("0.21.0rc1+cu128", "0.36.0-lmi26.0.0-cu130"),
        ("0.32.0", "0.36.0-lmi28.0.0-cu130"),  # all are older: the newest
        (None, "0.36.0-lmi28.0.0-cu130"),
    ],
)
def test_the_nearest_image_is_chosen(measured: str | None, tag: str) -> None:
    image, note = choose_image("lmi", measured)
    assert image.tag == tag
    assert bool(note) == (measured not in (None, image.engine_version))
    if note:
        assert str(measured) in note
        assert str(image.engine_version) in note


def test_images_on_request_only_are_never_chosen() -> None:
    assert all(not image.automatic for image in images("vllm") if "server" in image.tag)
    assert "server" not in choose_image("vllm", "0.27.0")[0].tag
    assert named_image("vllm", "server-sagemaker-cuda-v2.3")[0].cuda == "cu130"


def test_a_tag_that_no_table_knows_is_read_and_said() -> None:
    image, note = named_image("lmi", "0.37.0-lmi29.0.0-cu130")
    assert (image.release, image.cuda, image.engine_version) == (29, "cu130", None)
    assert "no table" in note


@pytest.mark.parametrize(("container", "tag"), [("lmi", "latest-cu130"), ("vllm", "latest")])
def test_a_tag_that_tells_too_little_is_refused(container: str, tag: str) -> None:
    with pytest.raises(DeployError, match="does not tell"):
        named_image(container, tag)


def test_every_image_has_a_host_whose_driver_runs_it() -> None:
    for container in ("lmi", "vllm", "hf-vllm", "sglang", "tgi"):
        for image in images(container):
            assert image.cuda in image.tag or "server" in image.tag
            assert ("al2023" in ami_version(image)) == (image.cuda == "cu130"), image


def test_a_cuda_without_a_known_host_is_refused() -> None:
    with pytest.raises(DeployError, match="cu140"):
        ami_version(named_image("vllm", "9.9-cu140")[0])


def test_the_registry_follows_the_region() -> None:
    assert image_uri("vllm", "t", "us-east-1") == (
        "763104351884.dkr.ecr.us-east-1.amazonaws.com/vllm:t"
    )
    assert image_uri("vllm", "t", "cn-north-1").endswith(".cn-north-1.amazonaws.com.cn/vllm:t")
    assert all(re.fullmatch(r"\d{12}\..*", image_uri("r", "t", region)) for region in regions())


def test_an_unknown_region_or_container_names_the_known_ones() -> None:
    with pytest.raises(UnknownName, match="us-east-9") as caught:
        image_uri("vllm", "t", "us-east-9")
    assert "us-east-1" in caught.value.hint
    with pytest.raises(UnknownName, match="ami"):
        images("ami")


def test_versions_compare_by_their_numbers() -> None:
    assert version_key("0.9.2") < version_key("0.10")
    assert version_key("0.22.1rc0+cpu") == (0, 22, 1)
    with pytest.raises(DeployError):
        version_key("main")
