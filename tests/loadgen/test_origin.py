import pytest

from servetune.errors import InputError
from servetune.loadgen.target import Origin


class TestOrigin:
    @pytest.mark.parametrize(
        ("url", "shown", "host_header", "prefix"),
        [
            ("http://127.0.0.1:8000", "http://127.0.0.1:8000", "127.0.0.1:8000", ""),
            ("127.0.0.1:8000/v1/", "http://127.0.0.1:8000", "127.0.0.1:8000", ""),
            ("https://a.example/t/v1", "https://a.example/t", "a.example", "/t"),
            ("https://a.example:80", "https://a.example:80", "a.example:80", ""),
            ("http://[::1]:9/", "http://[::1]:9", "[::1]:9", ""),
        ],
    )
    def test_urls_are_read_with_and_without_v1(self, url, shown, host_header, prefix):
        origin = Origin.parse(url)
        assert (str(origin), origin.host_header, origin.prefix) == (shown, host_header, prefix)

    @pytest.mark.parametrize(
        "url", ["ftp://x", "http://", "http://x:port", "http://x:99999", "", "http://u:p@x"]
    )
    def test_what_is_no_address_is_refused(self, url):
        with pytest.raises(InputError):
            Origin.parse(url)
