"""Weights in the page cache, as the kernel tells."""

import ctypes
import mmap
import os
import threading

import pytest

from servetune.servers.weights import model_folder, warm_up, weight_files

MIB = 1 << 20


def cached_fraction(path):
    """Share of a file's pages that are in memory, by mincore."""
    size = path.stat().st_size
    pages = -(-size // mmap.PAGESIZE)
    with path.open("rb") as file, mmap.mmap(file.fileno(), size, prot=mmap.PROT_READ) as view:
        libc = ctypes.CDLL(None, use_errno=True)
        libc.mmap.restype = ctypes.c_void_p
        seen = (ctypes.c_ubyte * pages)()
        address = libc.mmap(None, ctypes.c_size_t(size), 1, 1, file.fileno(), ctypes.c_long(0))
        assert libc.mincore(ctypes.c_void_p(address), ctypes.c_size_t(size), seen) == 0
        libc.munmap(ctypes.c_void_p(address), ctypes.c_size_t(size))
        del view
    return sum(byte & 1 for byte in seen) / pages


def forget(path):
    with path.open("rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def test_weights_that_were_on_disk_alone_are_in_memory_afterwards(tmp_path):
    path = tmp_path / "model.safetensors"
    path.write_bytes(os.urandom(16 * MIB))
    forget(path)
    if cached_fraction(path) > 0.1:
        pytest.skip("this file system keeps its pages")
    warmth = warm_up(tmp_path, halt=threading.Event(), available_bytes=1 << 40)
    assert warmth.read_bytes == 16 * MIB
    assert cached_fraction(path) > 0.95


def test_memory_without_room_for_them_is_left_alone(tmp_path):
    (tmp_path / "a.safetensors").write_bytes(bytes(MIB))
    warmth = warm_up(tmp_path, halt=threading.Event(), available_bytes=MIB)
    assert (warmth.read_bytes, warmth.reason) == (0, "memory has no room for them")
    assert warm_up(tmp_path, halt=threading.Event(), available_bytes=None).read_bytes == 0


def test_it_ends_when_the_run_does(tmp_path):
    (tmp_path / "a.safetensors").write_bytes(bytes(20 * MIB))
    halt = threading.Event()
    halt.set()
    warmth = warm_up(tmp_path, halt=halt, available_bytes=1 << 40)
    assert warmth.reason == "stopped"
    assert warmth.read_bytes < 20 * MIB


def test_one_form_of_the_weights_is_read(tmp_path):
    for name in ("b.safetensors", "a.safetensors", "pytorch_model.bin", "config.json"):
        (tmp_path / name).write_bytes(b"x")
    assert [path.name for path in weight_files(tmp_path)] == ["a.safetensors", "b.safetensors"]


def test_a_models_folder_is_its_own_or_the_hubs_newest(tmp_path, monkeypatch):
    old, new = (tmp_path / "hub/models--Qwen--Qwen3-4B/snapshots" / name for name in ("old", "new"))
    for folder, age in ((old, 100), (new, 200)):
        folder.mkdir(parents=True)
        os.utime(folder, (age, age))
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    assert model_folder("Qwen/Qwen3-4B") == new
    assert model_folder("no/such") is None
    assert model_folder(str(old)) == old
