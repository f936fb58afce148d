"""Spellings of credentials, and words that only sound like one, for tests that plant them."""

import re

#: A credential without a format of its own.
SECRET = "Tiger7woods9Xq"

#: Texts in which a credential stands; `¤` is to be replaced by it.
SPELLINGS = r"""
--api-key ¤
HF_TOKEN?=¤
api_key: str = '¤'
api_key: Optional[str] = ¤
OPENAI__API__KEY=¤
[1mHF_TOKEN[0m=[31m¤
serve--api-key ¤
---api_key=¤
docker run -eHF_TOKEN=¤ x
--api-key=¤
--api_key=¤
--api-key "¤"
--api-key '¤'
-api-key ¤
--apiKey ¤
apiKey: ¤
"apiKey": "¤"
"apikey":"¤"
api_key=¤
API_KEY=¤
X-API-Key: ¤
x-api-key=¤
"x-api-key": "¤"
Ocp-Apim-Subscription-Key: ¤
api-key: ¤
Authorization: Bearer ¤
Authorization: Basic ¤
Authorization: Token ¤
Authorization: ¤
authorization=Bearer%20¤
"Authorization": "Bearer ¤"
('Authorization', 'Bearer ¤')
b'authorization: bearer ¤'
[b'Authorization', b'Bearer ¤']
Proxy-Authorization: Basic ¤
Cookie: session=¤
Set-Cookie: sid=¤; Path=/
HF_TOKEN=¤
HF_TOKEN: ¤
HF_TOKEN = ¤
HF_TOKEN='¤'
export HF_TOKEN="¤"
declare -x HF_TOKEN="¤"
'HF_TOKEN': '¤'
"HF_TOKEN": "¤"
\"HF_TOKEN\": \"¤\"
\\\"HF_TOKEN\\\": \\\"¤\\\"
b'HF_TOKEN': b'¤'
('HF_TOKEN', '¤')
["HF_TOKEN", "¤"]
{"name": "HF_TOKEN", "value": "¤"}
{'name': 'HF_TOKEN', 'value': '¤'}
- name: HF_TOKEN value: ¤
hf_token=¤
hfToken=¤
--hf-token ¤
--token ¤
--token=¤
-e HF_TOKEN=¤
--env HF_TOKEN=¤
HUGGING_FACE_HUB_TOKEN=¤
HUGGINGFACE_HUB_TOKEN=¤
HUGGINGFACEHUB_API_TOKEN=¤
AWS_SECRET_ACCESS_KEY=¤
aws_secret_access_key = ¤
AWS_SESSION_TOKEN=¤
aws_session_token: ¤
SecretAccessKey: ¤
"SecretAccessKey": "¤"
"SessionToken": "¤"
sessionToken=¤
accessToken: ¤
"access_token":"¤"
access_token=¤&x=1
?api_key=¤&model=m
?key=¤&model=m
?token=¤
?sig=¤&se=2020
?X-Amz-Signature=¤
GITHUB_TOKEN=¤
GH_TOKEN=¤
GITLAB_PRIVATE_TOKEN=¤
CI_JOB_TOKEN=¤
PGPASSWORD=¤
DB_PASS=¤
DB_PWD=¤
MYSQL_PWD=¤
POSTGRES_PASSWORD=¤
password=¤
password: ¤
"password": "¤"
passwd=¤
--password ¤
-p password=¤
Password=¤;Server=x
AccountKey=¤;EndpointSuffix=core
SharedAccessKey=¤
client_secret=¤
clientSecret: "¤"
CLIENT_SECRET=¤
DJANGO_SECRET_KEY=¤
SECRET=¤
secret: ¤
JWT_SECRET=¤
secret_token=¤
WANDB_API_KEY=¤
OPENAI_API_KEY=¤
OPENAI_KEY=¤
ANTHROPIC_API_KEY=¤
REPLICATE_API_TOKEN=¤
SLACK_BOT_TOKEN=¤
TELEGRAM_TOKEN=¤
DISCORD_TOKEN=¤
CLOUDFLARE_API_TOKEN=¤
PYPI_TOKEN=¤
SENTRY_AUTH_TOKEN=¤
STRIPE_SECRET=¤
VLLM_API_KEY=¤
SGLANG_ADMIN_API_KEY=¤
--admin-api-key ¤
admin_api_key='¤'
ssl_keyfile_password='¤'
--ssl-keyfile-password ¤
private_key: ¤
PRIVATE_KEY=¤
ssh_key=¤
ENCRYPTION_KEY=¤
passphrase=¤
credential=¤
credentials: ¤
connection_string=¤
http://user:¤@host/x
postgres://user:¤@host:5432/db
redis://:¤@host:6379
https://¤@host/x
mongodb+srv://u:¤@c.example/x
amqp://u:¤%40x@h
curl -u user:¤ http://x
//user:¤@host/x
-H 'X-Api-Key: ¤'
-H "Authorization: Bearer ¤"
api_key=['¤']
api_key=["¤", "¤"]
api_key=('¤', '¤')
api_key: ['¤', '¤']
Namespace(api_key=['¤'], x=1)
api_key=SecretStr('¤')
"api_key": {"value": "¤"}
<api_key>¤</api_key>
api_key => ¤
:api_key => "¤"
api_key->¤
api_key := ¤
api_key\t¤
API key: ¤
Incorrect API key provided: ¤
invalid api key "¤"
token=¤
token: ¤
"token": "¤"
auth_token: ¤
auth=¤
bearer ¤
Bearer ¤
Bearer: ¤
_authToken=¤
//registry/:_authToken=¤
""".strip().splitlines()

#: Texts in which only the look of the word tells that it is a credential.
PROSE = """
HF_TOKEN was set to ¤
HF_TOKEN(¤)
set HF_TOKEN ¤
setenv HF_TOKEN ¤
api_key ¤
invalid token ¤
machine host login u password ¤
""".strip().splitlines()

#: Texts without a credential.
PLAIN = """
| `X-Auth-Token`, `Ocp-Apim-Subscription-Key` |
(`GITHUB_TOKEN`, `PGPASSWORD`, lists and pairs)
a variable in a header (`X-Api-Key: $TENANT_KEY`)
token Qwen/Qwen3-4B-Instruct-2507
max_tokens=4096
max_num_batched_tokens: 8192
"max_new_tokens": 128, "min_tokens": 16
tokenizer=Qwen/Qwen3-4B-Instruct-2507
tokenizer_mode: auto
token_budget=512
num_secret_layers=4
num_key_value_heads: 8
"num_key_value_heads": 8
key_value_heads 8
pad_token_id=151643
eos_token: <|im_end|>
EOS_TOKEN=<|im_end|>
PAD_TOKEN=abcdef
special token <|fim_prefix1|>
commit 9f3c2b1a7d6e5f4c3b2a19087f6e5d4c3b2a1908
cache key: 9f3c2b1a7d6e5f4c3b2a19087f6e5d4c3b2a1908
"key": "03ac674216f3e15c"
routing_key=user-1234
public_key=ssh-ed25519
sort_keys=True
prompt_cache_key: a1b2
author: Ada Lovelace
authority=example.org
passed: 12, failed: 1
passes=3
compass=north
bypass_cache: true
--allow-credentials --cors-credentials
allow_credentials=yes
require_api_key: on
allow_credentials=True
api_key=None
api_key: null
api_key=$SERVER_KEY
"api_key": "${SERVER_KEY}"
X-Api-Key: $TENANT_KEY
Authorization: Bearer $TENANT_KEY
export HF_TOKEN=... before the run
HF_TOKEN is not set, so Qwen/Qwen3-4B-Instruct-2507 is not read
HF_TOKEN is not set for http://localhost:8000/v1/models/Qwen3-4B
HF_TOKEN is not set
the value of X-Api-Key is a secret, which commands would show
the value of --server-env HF_TOKEN is a secret
give --hf-token-secret ARN or --hf-token-from-env
arn:aws:secretsmanager:us-east-1:123456789012:secret:hf-AbCdEf
first token after 30 ms, tokens/s=900
the bearer token lasts 12 h
output tokens: 64 of 64
token times: [0.1, 0.2]
http://localhost:8000/v1/models
http://127.0.0.1:8000/metrics?name=vllm
https://huggingface.co/Qwen/Qwen3-4B@main
s3://bucket/prefix:part@2
docker run --user 1000:1000 vllm/vllm-openai:v0.11.0
prefix_cache_hit_rate: 0.5
secretary: Bob
task-of-a-very-long-name-indeed
hf_overrides={'a': 1}
""".strip().splitlines()

#: Credentials with a format of their own, written in two so that no scanner takes them for real.
FORMATS = (
    "hf_" + "Tiger7woods9XqAbCdEf0123456789Gh",
    "sk-" + "proj-Tiger7woods9XqAbCdEf012345",
    "AKIA" + "TIGER7WOODS9XQ01",
    "ghp_" + "Tiger7woods9XqAbCdEf0123456789GhIj",
    "github_pat_" + "Tiger7woods9XqAbCdEf0123456789GhIj",
    "glpat-" + "Tiger7woods9XqAbCdEf",
    "nvapi-" + "Tiger7woods9XqAbCdEf0123456789",
    "xoxb-" + "Tiger7woods9Xq-12345",
    "gsk_" + "Tiger7woods9XqAbCdEf0123456789GhIj",
    "https://hooks.slack.com/services/" + "T0001/Tiger7woods9Xq",
    "eyJhbGciOiJIUzI1." + "eyJUaWdlcjd3b29kc.Tiger7woods9Xq",
    "-----BEGIN PRIVATE KEY-----\nMIIE" + "Tiger7woods9Xq\n-----END PRIVATE KEY-----",
)

#: Environment of a process that holds credentials of many kinds; none begins as `SECRET` does, so
#: that this one is not known by its value.
ENVIRONMENT = {
    "HF_TOKEN": "hf_" + "Panther3roams8ZkAbCdEf0123456789",
    "AWS_SECRET_ACCESS_KEY": "Panther3roams8Zk+Access/Key/that/has/no/format",
    "AWS_SESSION_TOKEN": "Panther3roams8Zk-session==",
    "OPENAI_API_KEY": "sk-" + "proj-Panther3roams8ZkAbCdEf0123",
    "WANDB_API_KEY": "Panther3roams8Zk0123456789abcdef",
    "DB_PASSWORD": "Panther3roams8Zk, with 'quotes\" and\\words; x=1",
    "PGPASSWORD": "Panther3roams8Zk{}[]()<>&",
    "DATABASE_URL": "postgres://ada:Panther3roams8Zk@db.example:5432/x",
    "MY_OWN_SERVICE_KEY": "Panther3roams8Zk-own",
    "CI_JOB_TOKEN": "Panther3roams8Zk-ci",
    "SSH_PRIVATE_KEY": "-----BEGIN PRIVATE KEY-----\nMIIEPanther3\nx\n-----END PRIVATE KEY-----",
    "TENANT": "Panther3roams8Zk-tenant",
    "SERVING": "Panther3roams8Zk-serving",
}


_PLANTED = re.compile("(?i)tiger7|panther3")


def texts() -> list[str]:
    """Each spelling with a credential, and each format alone and in a sentence."""
    spelt = [spelling.replace("¤", SECRET) for spelling in SPELLINGS + PROSE]
    return spelt + [f"loaded with {token} in 3 s" for token in FORMATS] + list(FORMATS)


def leaks(text: str) -> list[str]:
    """Places of a text at which a planted credential stands."""
    return [text[max(0, hit.start() - 60) :][:100] for hit in _PLANTED.finditer(text)]
