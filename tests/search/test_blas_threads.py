from __future__ import annotations

from threadpoolctl import ThreadpoolController, threadpool_info

from servetune.search.blas_threads import by_one_thread


def threads() -> set[int]:
    return {each["num_threads"] for each in threadpool_info() if each["user_api"] == "blas"}


def test_matrices_are_multiplied_by_one_thread_inside_alone() -> None:
    with ThreadpoolController().limit(limits=2, user_api="blas"):
        assert by_one_thread(threads)() == {1}
        assert threads() == {2}
