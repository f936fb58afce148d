"""Credentials: detection and redaction of tokens and keys.

A container's environment is visible to everyone who may describe the model; a bundle, a
journal and an error message are copied, committed and mailed. So a setting that looks like
a credential is refused, and text from outside (a command line, a log, a response) is redacted
where it enters, before anything is made of it.

A credential is known in three ways: by a format of its own (`hf_...`, a private key, the user of
a URL), by the name before it (`--api-key X`, `'HF_TOKEN': 'X'`), and by its value, where it is
that of a variable of this process or one that a request was signed with (`hide`).
"""

from __future__ import annotations

import functools
import json
import os
import re
import string
from collections.abc import Callable
from typing import Any

__all__ = [
    "REDACTED",
    "beginning",
    "hide",
    "is_secret",
    "is_secret_name",
    "looks_secret",
    "redacted",
    "redacted_text",
    "redactor",
    "without",
]

REDACTED = "[redacted]"

# by format

#: Hugging Face, AWS key ids, GitHub, GitLab, OpenAI style, NVIDIA NGC, Slack, Google, npm, PyPI,
#: Docker, Stripe, Groq, xAI, Replicate, Vault, SendGrid, signed web tokens, private keys (whole, or
#: one whose beginning or end was cut off), and user and password of a URL.
_TOKENS = re.compile(
    r"hf_[A-Za-z0-9]{20,}|api_org_[A-Za-z0-9]{20,}"
    r"|(?:AKIA|ASIA)[A-Z0-9]{16}"
    r"|gh[pousr]_[A-Za-z0-9]{30,}"
    r"|github_pat_[A-Za-z0-9_]{30,}"
    r"|glpat-[A-Za-z0-9_-]{20,}"
    r"|\bsk-[A-Za-z0-9_-]{20,}"
    r"|\b[rs]k_(?:live|test)_[A-Za-z0-9]{16,}"
    r"|\bgsk_[A-Za-z0-9]{30,}|\bxai-[A-Za-z0-9]{30,}|\br8_[A-Za-z0-9]{30,}"
    r"|\bnvapi-[A-Za-z0-9_-]{20,}"
    r"|xox[abprs]-[A-Za-z0-9-]{10,}|hooks\.slack\.com/services/[A-Za-z0-9/]{16,}"
    r"|\bAIza[A-Za-z0-9_-]{35}|\bya29\.[A-Za-z0-9_-]{20,}"
    r"|\bnpm_[A-Za-z0-9]{36}|\bpypi-[A-Za-z0-9_-]{30,}"
    r"|\bdckr_pat_[A-Za-z0-9_-]{20,}"
    r"|\bhv[sb]\.[A-Za-z0-9_-]{20,}|\bSG\.[A-Za-z0-9_-]{16,}\.[A-Za-z0-9_-]{16,}"
    r"|\beyJ[A-Za-z0-9_-]{10,}\.eyJ[A-Za-z0-9_-]{4,}(?:\.[A-Za-z0-9_-]*)?"
    r"|-----BEGIN [A-Z ]{0,30}PRIVATE KEY-----"
    r".*?(?:-----END [A-Z ]{0,30}PRIVATE KEY-----|\Z)"
    r"|\A(?:(?!-----BEGIN).)*?-----END [A-Z ]{0,30}PRIVATE KEY-----"
    r"|(?<=//)[^\s/@:'\"]{0,100}:(?!\d{1,5}/)[^\s'\"]{0,200}(?=@)"
    r"|(?<=://)(?!\[redacted\]@)[^\s/'\"]{1,300}(?=@)",
    re.DOTALL,
)

#: One of these is in every text with such a credential, but for the user of a URL; they are looked
#: for first, as that takes a fraction of the expression's time.
_MARKS = (
    "hf_", "api_org_", "AKIA", "ASIA", "ghp_", "gho_", "ghu_", "ghs_", "ghr_", "github_pat_",
    "glpat-", "sk-", "k_live_", "k_test_", "gsk_", "xai-", "r8_", "nvapi-", "xox",
    "hooks.slack.com", "AIza", "ya29.", "npm_", "pypi-", "dckr_pat_", "hvs.", "hvb.", "SG.", "eyJ",
    "PRIVATE",
)  # fmt: skip

# by name

#: Words of a name, joined by `_`, at whose end stands a credential; a number or a plural may
#: follow.
_NAME = re.compile(
    r"(?:^|_)(?:"
    r"(?:hf|hub|huggingface|api|auth|bearer|session|security|access|refresh|id|csrf|secret|private|"
    r"admin|user|client|service|personal|deploy|job|registry|github|gh|gitlab|git|openai|anthropic|"
    r"wandb|ngc|nvidia|slack|npm|pypi|vault|bot|telegram|discord|azure|google|aws|x)_token"
    r"|(?:api|secret|secret_access|shared_access|access|private|ssh|ssl|tls|signing|encryption|"
    r"master|subscription|account|storage|auth|license|admin|openai|anthropic|azure|google|gemini|"
    r"cohere|mistral|groq|wandb|ngc|nvidia|hf)_key"
    r"|apikey|authtoken|accesstoken|hftoken|secretkey|privatekey|accesskey"
    r"|secret|secret_value|password|passwd|passphrase|pgpassword|credential|connection_string"
    r"|(?:db|database|sql|mysql|postgres|pg|redis|mongo|user|admin|root|smtp|ftp|ssh|ssl|my)_"
    r"(?:pass|pwd)"
    r"|authorization|proxy_authorization|cookie"
    r")s?(?:_?\d{1,2}|_(?:old|new|prod|dev|test|staging|primary|secondary|backup|b64|base64))?$"
)

#: Last words of a variable in capitals that holds a credential of a service unknown here, and the
#: words before them that name something else.
_VARIABLE = re.compile(r"(?:^|_)([A-Z0-9]+)_(?:TOKEN|KEY|PASS|PAT)$")
_NO_CREDENTIAL = re.compile(
    r"PAD|EOS|BOS|UNK|SEP|CLS|MASK|IMAGE|AUDIO|VIDEO|STOP|START|END|SPECIAL|PER|NEXT|"
    r"LAST|FIRST|NEW|DRAFT|PROMPT|OUTPUT|INPUT|TOTAL|CACHED|MAX|MIN|NUM|EACH|BY|PUBLIC|"
    r"PRIMARY|FOREIGN|SORT|CACHE|ROUTING|PARTITION|GROUP|DICT|MAP|LOOKUP|HASH|INDEX|"
    r"VALUE|QUERY|HEAD|FIELD|ROW|MATCH|HOT|BUCKET|OBJECT|PREFIX"
)

#: First words of a name that is a switch, such as `allow_credentials`.
_SWITCH = re.compile(r"(?i)(?:allow|cors|enable|disable|require|has|is)_")

_HUMP = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")

#: A word without which no name is that of a credential, in small letters.
_HINT = re.compile(r"(?i)key|token|secret|pass|pwd|credential|auth|cookie|bearer|connection|pat\b")


# what stands between a name and its value

_QUOTE = r"(?:\\{0,6}[\"'`]|&quot;|&\#0?39;|&\#x27;)"
_COLOUR = r"(?:[\x1b ]?\[[0-9;]{0,12}m)*"
_TYPE = r"(?:str|Optional\[str\]|str[ ]?\|[ ]?None)"
_ASSIGNED = re.compile(
    rf"{_COLOUR}{_QUOTE}?\]?[ \t]*{_COLOUR}"
    rf"(?::[ \t]*{_TYPE}[ \t]*=|=>|:=|->|[?+]?=|:(?!//)|%3[dDaA]|[|│]|\\t)[ \t]*"
    rf"{_COLOUR}(?:\n(?:[ \t]+-?|-)[ \t]*)?"
)
_NAMES = re.compile(
    r"(-{2,9}|(?<![A-Za-z0-9_])-|(?<![A-Za-z0-9_-])|(?<=[0-9\[;]m))"  # `m` ends a colour
    r"([A-Za-z_][A-Za-z0-9_]{0,63}(?:-[A-Za-z0-9_]{1,63}){0,8})"
)
#: `('HF_TOKEN', 'X')`, and `"name": "HF_TOKEN", "value": "X"` in JSON and YAML.
_PAIRED = re.compile(
    rf"(?!`){_QUOTE}\s{{0,9}},\s{{0,40}}(?!{_QUOTE}value{_QUOTE})(?=[bru]?{_QUOTE}|[\[(])"
)
_OPENED = re.compile(rf"[\[(]\s{{0,9}}[bru]?{_QUOTE}\Z")
_MEMBER = re.compile(rf"{_QUOTE}?,?\s{{1,40}}{_QUOTE}?value{_QUOTE}?[ \t]*[:=][ \t]*")
_SPACED = re.compile(r"[ \t]+(?![\[-])(?:\\\n[ \t]*)?|%20")
_NEAR = re.compile(
    r"[^A-Za-z0-9]{1,8}(?:(?:is|was|set|to|of|as|value|given)\W{1,6}){0,3}?([\w+=-]{12,200})(?!/)"
)
_TAGGED = re.compile(r">")

# values

#: What stands in the place of a credential.
_SHOWN = r"\[(?:redacted|(?:session|secret|access) (?:token|key))\]"
_WRAPPER = "(?:Secret|SecretStr|SecretBytes|list|tuple|set|frozenset|dict)"
_QUOTED = re.compile(
    rf"((?:{_WRAPPER}\()?[bru]?(?P<quote>{_QUOTE})(?:(?:Bearer|Basic|Token) )?)"
    r"((?:(?!(?P=quote))(?:\\[^\n]|[^\n])){1,4000})"
)
_LISTED = re.compile(rf"(?!{_SHOWN})((?:{_WRAPPER})?[\[({{])((?:{_SHOWN}|[^\])}}\n]){{1,4000}})")
_WORD = re.compile(
    rf"((?:(?:Bearer|Basic|Token)(?:[ ]+|%20))?+)(?!{_SHOWN})"
    r"((?:[^\s'\"`,;&\\\]})<\x1b]|[,;&)](?=[^\s'\"`,;&\\\]})<\x1b])(?!--?[A-Za-z]|[\w.-]+['\"]?[=:]))+)",
    re.IGNORECASE,
)
_SHELL_WORD = re.compile(
    rf"(?!{_SHOWN}|{_QUOTE}|[\[(])(?:(?![,;](?:--?[A-Za-z]|[\w.-]+['\"]?[=:]))\S)+"
)
#: All of a header's value: `Cookie: a=1; b=2`.
_PARAMETERS = re.compile(r"(?:[,;] ?[\w.-]{1,80}=(?!['\"\[(])[^\s'\";,]*)*")
#: Options whose value is the name of a secret, not the secret.
_REFERENCES = ("token-secret", "token_secret", "-secret")
_HEADERS = ("authorization", "cookie")
_EACH = re.compile(rf"{_SHOWN}|[^\s'\",\\&:=]+")

#: Values that are no credential: nothing, a placeholder, or the name of an environment variable.
_HARMLESS = re.compile(
    r"(?i:null|none|true|false|redacted|empty|required|missing|invalid)"
    r"|\$[A-Z_][A-Z0-9_]*|\$\{[A-Z_][A-Z0-9_]*\}?|\$\([^)]*\)?|arn:aws\S*|ARN|\.{2,}\W*|…|\*+|<.*"
    rf"|{_SHOWN}|[A-Z]+(?:_[A-Z0-9]+)+"
)

#: A value that looks like chance, after a word that often stands before others: `token: X`.
_LOOSE = re.compile(
    r"(?i)((?<![a-z0-9_])(?:(?:api|access|secret|auth)[ _-]?key"
    r"|token|password|secret|credential|auth|bearer)s?)"
    rf"({_QUOTE}?[ \t:=>,]{{1,4}}(?:(?:provided|given|is|was|of)"
    rf"[ :]{{1,3}})?{_QUOTE}?)([A-Za-z0-9+/_=%.~-]{{12,}})"
)
_HEXADECIMAL = re.compile(r"[0-9a-fA-F]{32,}|[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")
_QUERY = re.compile(
    r"(?i)([?&](?:key|token|sig|auth|code|signature|x-amz-[a-z-]+)=)([^\s&'\"<>\[]+)"
)
_LOGIN = re.compile(r"((?:^|\s)(?:-u|--user)[ =]?['\"]?[A-Za-z][^\s:'\"]*:)([^\s'\"]+)")

#: Characters of a value that are enough of it to be removed from what is shown.
_LEAST_KEPT = 12
_LEAST_HIDDEN = 8
#: Characters behind a cut that are searched for the end of a credential.
_SEARCHED = 1500
_UNRESERVED = frozenset(string.ascii_letters + string.digits + "-._~")

_hidden: set[str] = set()


def hide(value: str) -> None:
    """Remember a credential in use, so that no text that repeats it shows it."""
    if _is_telling(value):
        _hidden.add(value)


def looks_secret(text: str) -> bool:
    """Whether the text contains a credential with a recognisable format."""
    return _is_marked(text) and _TOKENS.search(text) is not None


def _is_marked(text: str) -> bool:
    return ("//" in text and "@" in text) or any(mark in text for mark in _MARKS)


@functools.lru_cache(8192)
def is_secret_name(name: str) -> bool:
    """Whether a setting of this name holds a credential: `hf_token`, `--api-key`, `apiKey`.

    Example:
        >>> [is_secret_name(name) for name in ("X-Api-Key", "PGPASSWORD", "max_tokens")]
        [True, True, False]
    """
    if not _HINT.search(name):
        return False
    name = re.sub(r"[-_]+", "_", name).strip("_")
    if _SWITCH.match(name):
        return False
    if name.isupper() and (found := _VARIABLE.search(name)):
        return not _NO_CREDENTIAL.fullmatch(found[1])
    return _NAME.search(_HUMP.sub("_", name).lower()) is not None


def is_secret(name: str, value: object) -> bool:
    """Whether a setting holds a credential, by its name or in its value, or held one once."""
    text = str(value)
    return is_secret_name(name) or REDACTED in text or redacted_text(text) != text


def redacted_text(text: str) -> str:
    """Text with every credential replaced, by its format, its name or its value.

    Example:
        >>> redacted_text("serve m --api-key tiger")
        'serve m --api-key [redacted]'
        >>> redacted_text("X-Api-Key: $TENANT_KEY")
        'X-Api-Key: $TENANT_KEY'
    """
    return _redacted_text(text, _values_in_use())


def beginning(text: str, most: int) -> str:
    """First characters of a text; half a credential would be recognised no longer, so they are
    taken out before it is cut.

    Example:
        >>> beginning("HF_TOKEN=tiger-woods-2000 serve", 24)
        'HF_TOKEN=[redacted] serv'
    """
    return redacted_text(text[: most + _SEARCHED])[:most]


def redacted(value: object) -> Any:
    """JSON value with every credential replaced by `REDACTED`."""
    return _redacted(value, _values_in_use())


def redactor() -> Callable[[object], Any]:
    """`redacted` for many values in a row: the environment is read once."""
    return functools.partial(_redacted, in_use=_values_in_use())


def without(text: str, secret: str, shown: str = REDACTED) -> str:
    """Text in which `shown` stands for the secret, also where the secret is cut off or quoted.

    Example:
        >>> without("signed with abcdefghijklmnop and abcdefghijklm", "abcdefghijklmnop", "KEY")
        'signed with KEY and KEY'
    """
    for spelt in {secret, _percent_encoded(secret), json.dumps(secret)[1:-1]}:
        begin = spelt[:_LEAST_KEPT]
        at = text.find(begin) if begin else -1
        while at >= 0:
            end = at + len(begin)
            while end < len(text) and text[end] == spelt[end - at : end - at + 1]:
                end += 1
            text = text[:at] + shown + text[end:]
            at = text.find(begin, at + len(shown))
    return text


def _percent_encoded(text: str) -> str:
    encoded = (
        f"%{byte:02X}" if chr(byte) not in _UNRESERVED else chr(byte) for byte in text.encode()
    )
    return "".join(encoded)


def _values_in_use() -> tuple[str, ...]:
    """Credentials that were hidden or stand in the environment, the longest first.

    Values that are a path or a word of letters alone are left: they would redact plain text.
    """
    named = (value.strip() for name, value in os.environ.items() if is_secret_name(name))
    return tuple(sorted({*_hidden, *filter(_is_telling, named)}, key=len, reverse=True))


def _is_telling(value: str) -> bool:
    plain = value.isalpha() or value[:1] in "/~$" or _HARMLESS.fullmatch(value)
    return len(value) >= _LEAST_HIDDEN and not plain


def _redacted_text(text: str, in_use: tuple[str, ...]) -> str:
    for value in in_use:
        text = text.replace(value, REDACTED)
    if _is_marked(text):
        text = _TOKENS.sub(REDACTED, text)
    for value in in_use:  # also where they are cut off
        text = without(text, value)
    if not _HINT.search(text) and ":" not in text and "=" not in text:
        return text
    text = _without_named_values(text)
    text = _QUERY.sub(_second_replaced, text)
    text = _LOGIN.sub(_second_replaced, text)
    return _LOOSE.sub(_loose_replaced, text)


def _each_replaced(found: re.Match[str]) -> str:
    return found[0] if _HARMLESS.fullmatch(found[0]) else REDACTED


def _loose_replaced(found: re.Match[str]) -> str:
    only_keys = found[1].lower().startswith(("bearer", "api"))  # have such values
    key = only_keys and len(found[3]) > _LEAST_KEPT + 3 and "_" not in found[3]
    return found[1] + found[2] + REDACTED if key or _is_chance(found[3]) else found[0]


def _second_replaced(found: re.Match[str]) -> str:
    return found[0] if _HARMLESS.fullmatch(found[2]) else found[1] + REDACTED


def _is_chance(word: str) -> bool:
    """Whether a word is likely to be drawn by chance: hexadecimal, or of mixed letters and digits
    that change more often than in a name such as `Qwen3-4B-Instruct-2507`.
    """
    if _HEXADECIMAL.fullmatch(word):
        return True
    signs = re.sub(r"[^A-Za-z0-9]", "", word)
    runs = re.findall(r"[a-z]+|[A-Z]+|[0-9]+", signs)
    return (
        len(signs) >= _LEAST_KEPT
        and len(re.findall(r"\d", signs)) > 1
        and (len(runs) - 1 > 0.35 * (len(signs) - 1))
    )


def _without_named_values(text: str) -> str:
    pieces, at = [], 0
    for name in _NAMES.finditer(text):
        if name.start() < at or not (is_secret_name(name[2]) or name[0] in ("-token", "--token")):
            continue
        if found := _value_after(text, name) or _value_near(text, name):
            begin, end, shown = found
            pieces += [text[at:begin], shown]
            at = end
    return "".join([*pieces, text[at:]]) if pieces else text


def _value_after(text: str, name: re.Match[str]) -> tuple[int, int, str] | None:
    """Begin and end of the credential after a name, and what is shown in its place."""
    at = _value_begin(text, name)
    if at is None:
        return None
    if shell := _of_shell(text, name, at):
        return *shell.span(), REDACTED
    if listed := not (found := _QUOTED.match(text, at)) and _LISTED.match(text, at):
        return *listed.span(2), _EACH.sub(_each_replaced, listed[2])
    found = found or _WORD.match(text, at)
    if found is None or _HARMLESS.fullmatch(found[found.lastindex or 0]):
        return None
    begin, end = found.span(found.lastindex or 0)
    if name[2].lower().endswith(_HEADERS) and (more := _PARAMETERS.match(text, end)):
        end = more.end()
    return begin, end, REDACTED


def _value_near(text: str, name: re.Match[str]) -> tuple[int, int, str] | None:
    """A word of chance within a few words of the name: `HF_TOKEN was set to X`."""
    found = _NEAR.match(text, name.end())
    return (*found.span(1), REDACTED) if found and _is_chance(found[1]) else None


def _of_shell(text: str, name: re.Match[str], at: int) -> re.Match[str] | None:
    """Value of `NAME=value` or `--name value`, which ends at a space and may hold any sign."""
    begins = text[max(0, name.start() - 1) : name.start()].strip() == ""
    assigned = text[at - 1] == "=" and name[2].isupper()
    if not begins or not (assigned or name[1]):
        return None
    found = _SHELL_WORD.match(text, at)
    return None if found and _HARMLESS.fullmatch(found[0]) else found


def _value_begin(text: str, name: re.Match[str]) -> int | None:
    begin, at = name.span(2)
    before = text[max(0, begin - 16) : begin]
    if before.endswith(":") and name[2] == "secret":  # in the ARN of one
        return None
    between = (
        _ASSIGNED.match(text, at)
        or (_OPENED.search(before) and _PAIRED.match(text, at))
        or _MEMBER.match(text, at)
        or (name[1] and not name[0].endswith(_REFERENCES) and _SPACED.match(text, at))
        or (before.endswith("<") and _TAGGED.match(text, at))
    )
    return between.end() if between else None


def _redacted(value: object, in_use: tuple[str, ...]) -> Any:
    if isinstance(value, str):
        return (_short_redacted if len(value) < _SHORT else _redacted_text)(value, in_use)
    if isinstance(value, dict):
        if isinstance(name := value.get("name"), str) and "value" in value and is_secret_name(name):
            value = {**value, "value": _hidden_value(value["value"])}
        return _redacted_members(value, in_use)
    if isinstance(value, list | tuple):
        match value:
            case [str(name), item] if is_secret_name(name):  # a pair of name and value
                return [name, _hidden_value(item)]
        return [
            _hidden_value(item)
            if isinstance(item, str) and _is_option(before)
            else _redacted(item, in_use)
            for before, item in zip(("", *value), value, strict=False)
        ]
    return value


def _redacted_members(members: dict[Any, Any], in_use: tuple[str, ...]) -> dict[Any, Any]:
    """Object without credentials; a record has hundreds of members, most of them numbers under
    names that were looked at before.
    """
    harmless = _harmless_names(in_use)
    if harmless.issuperset(members) and _TEXTLESS.issuperset(map(type, members.values())):
        return members
    plain = {}
    for key, item in members.items():
        if key in harmless:
            plain[key] = item if type(item) in _TEXTLESS else _redacted(item, in_use)
        elif isinstance(key, str) and is_secret_name(key):
            plain[_redacted(key, in_use)] = _hidden_value(item)
        else:
            name = _redacted(key, in_use)
            plain[name] = _redacted(item, in_use)
            if name == key and len(harmless) < _MOST_NAMES:
                harmless.add(key)
    return plain


def _hidden_value(value: object) -> object:
    """What is shown of a value whose name is a credential's: whether there is one."""
    if not value or isinstance(value, bool):
        return value
    return value if isinstance(value, str) and _HARMLESS.fullmatch(value) else REDACTED


def _is_option(word: object) -> bool:
    """Whether the next word of a command line is a credential."""
    return isinstance(word, str) and word[:1] == "-" and is_secret_name(word)


#: Texts that come again and again, such as the names of a record's fields, are looked at once.
_SHORT = 100
_short_redacted = functools.lru_cache(8192)(_redacted_text)

#: Types of values that hold no text.
_TEXTLESS = frozenset({float, int, bool, type(None)})


_MOST_NAMES = 8192


@functools.lru_cache(16)
def _harmless_names(_in_use: tuple[str, ...]) -> set[str]:
    """Names of members, as far as they came by, that neither hold a credential nor name one."""
    return set()
