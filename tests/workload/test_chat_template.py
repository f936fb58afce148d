"""Chat templates as the programs of others that they are."""

import pytest

from servetune.errors import InputError
from servetune.workload.chat_template import ChatTemplate

MESSAGES = [{"role": "user", "content": "Hello"}, {"role": "assistant", "content": "Yes"}]
LONG = "range(90000)"

CHATML = (
    "{% for m in messages %}{{ '<|im_start|>' ~ m.role + '\n' + m.content + '<|im_end|>\n' }}"
    "{% if loop.last %}{{ loop.length }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def test_a_template_renders_as_in_jinja_alone():
    assert ChatTemplate(CHATML).render(MESSAGES) == (
        "<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\nYes<|im_end|>\n2"
        "<|im_start|>assistant\n"
    )
    source = (
        "{%- macro part(x) %}[{{ x }}]{% endmacro -%}"
        "{%- set ns = namespace(n=0) -%}"
        "{%- for m in messages if m.role == 'user' recursive -%}"
        "{%- set ns.n = ns.n + 1 -%}{{ part(m.content) }}{{ loop.index }}"
        "{%- endfor -%}{% set kept %}{{ ns.n }}!{% endset %}{{ kept }}{{ 'a' * 3 }}{{ '%s' % 4 }}"
        "{{ messages | map(attribute='role') | join(',') }}{{ messages[-1] | tojson }}"
    )
    assert ChatTemplate(source).render(MESSAGES) == (
        '[Hello]11!aaa4user,assistant{"role": "assistant", "content": "Yes"}'
    )


@pytest.mark.parametrize(
    "source",
    [
        f"{{% for a in {LONG} %}}{{% for b in {LONG} %}}{{% endfor %}}{{% endfor %}}",
        f"{{% for a in {LONG} %}}{{% for b in {LONG} %}}x{{% endfor %}}{{% endfor %}}",
        "{% macro f(n) %}{% if n %}{{ f(n-1) }}{{ f(n-1) }}{% endif %}{% endmacro %}{{ f(40) }}",
        (
            "{% set ns = namespace(s='ab') %}{% for i in range(99) %}{% set ns.s = ns.s + ns.s %}"
            "{% endfor %}"
        ),
        (
            "{% set ns = namespace(s='ab') %}{% for i in range(99) %}{% set ns.s = ns.s ~ ns.s %}"
            "{% endfor %}"
        ),
        (
            "{% set ns = namespace(s='ab') %}{% for i in range(99) %}"
            "{% set both %}{{ ns.s }}{{ ns.s }}{% endset %}{% set ns.s = both %}{% endfor %}"
        ),
        (
            "{% set ns = namespace(s=[1]) %}{% for i in range(99) %}{% set ns.s = ns.s + ns.s %}"
            "{% endfor %}"
        ),
        "{{ 'a' * 10**10 }}",
        "{{ 10**10 * 'a' }}",
        "{{ [0] * 999999999 }}",
        "{{ 9 ** (9 ** 9) }}",
        "{{ 'a' | center(10**10) }}",
        "{{ '%9999999999d' % 1 }}",
        "{{ '%*d' % (10**10, 1) }}",
        "{% set s = 'a' * 9000000 %}{% for i in range(9999) %}{{ s }}{% endfor %}",
        (
            "{% set ns = namespace(n=3) %}{% for i in range(99) %}{% set ns.n = ns.n * ns.n %}"
            "{% endfor %}"
        ),
    ],
)
def test_a_template_that_does_not_end_is_one_error(source):
    with pytest.raises(InputError, match="does not end: ") as caught:
        ChatTemplate(source).render(MESSAGES)
    assert "completions" in caught.value.hint


@pytest.mark.parametrize(
    "source",
    [
        "{{ 1/0 }}",
        "{{ messages[9].role.x }}",
        "{{ none.x.y }}",
        "{{ raise_exception('no system message') }}",
        "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
        "{{ ''.__class__.__mro__ }}",
        "{{ messages.append(1) }}",
        "{{ messages | sort }}",
        "{{ 'a' + 1 }}",
    ],
)
def test_a_template_that_fails_is_one_error(source):
    with pytest.raises(InputError, match=r"refuses these messages|does not end"):
        ChatTemplate(source).render(MESSAGES)


@pytest.mark.parametrize("source", ["{% for %}", "{{ ", "{% endfor %}", "{{ x | nofilter }}"])
def test_a_template_that_is_none_is_one_error(source):
    with pytest.raises(InputError, match="cannot read the chat template"):
        ChatTemplate(source)
