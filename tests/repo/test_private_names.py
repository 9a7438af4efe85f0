"""The private names of other libraries that this package uses are in the installed versions, and mean what they meant.

Where a test fails, a library has renamed something: find the new name, or better a public one, for the one file that
has the old name (``tests/fences.py`` lists these files).
"""

from __future__ import annotations

import asyncio
import inspect
import io
import pickle
import weakref
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import aiohttp
import fences
import fsspec
import house
import pytest
from aiobotocore.session import AioSession
from azure.identity.aio import ManagedIdentityCredential
from botocore.session import Session
from each_row import each_row
from fsspec.implementations.local import LocalFileSystem
from fsspec.implementations.memory import MemoryFileSystem
from gcsfs.core import GCSFileSystem
from s3fs import S3FileSystem

from streamer.backends.private_names import diffusers as of_diffusers
from streamer.backends.private_names import fsspec as of_fsspec
from streamer.backends.private_names import python as of_python
from streamer.backends.private_names import storage_clients as of_clients

# The oldest and the newest version that these tests passed with.
TRIED = {
    "aiobotocore": ("2.13.1", "3.10.0"),
    "aiohttp": ("3.9.5", "3.14.5"),
    "azure-core": ("1.30.2", "1.41.0"),
    "azure-identity": ("1.16.1", "1.27.0"),
    "botocore": ("1.34.131", "1.43.117"),
    "diffusers": ("0.42.1", "0.42.1"),
    "fsspec": ("2024.6.0", "2026.9.0"),
    "gcsfs": ("2024.6.0", "2026.10.1"),
    "s3fs": ("2024.6.0", "2026.9.0"),
    "torch": ("2.13.0", "2.13.0"),
}
MODULES = house.python_files()
FENCES = [module for module in MODULES if fences.is_fence(module)]


def check(library: str, owner: object, *names: str) -> None:
    gone = [name for name in names if not hasattr(owner, name)]
    oldest, newest = TRIED[library]
    assert not gone, f"{library} {version(library)} has no {gone} in {owner}; tried with {oldest} to {newest}"


def test_no_other_file_uses_a_private_name_of_a_library() -> None:
    found = {module: list(fences.private_names(path)) for module, path in MODULES.items() if module not in FENCES}
    assert {module: names for module, names in found.items() if names} == {}


@each_row("module", FENCES)
def test_each_mistake_has_a_check(module: str) -> None:
    used = {name for _, name in fences.private_names(MODULES[module])}
    assert used
    engines = sorted((Path(__file__).parents[1] / "serving").glob("test_*.py"))
    checks = "".join(path.read_text() for path in (Path(__file__), *engines))
    assert {name for name in used if f'"{name}"' not in checks} == set()


def test_private_names_are_distinguished_from_names_of_files(tmp_path: Path) -> None:
    source = tmp_path / "source.py"
    source.write_text(
        "import torch._inductor\nfrom google.auth._helpers import update_query\nfrom streamer._load import load\n"
        "class Own:\n    _shared: int = 0\n    def _method(self): self._kept = self._of_base\n"
        "def use(it, cls): return it._private, getattr(it, '_hidden'), it._kept, cls._method(it), cls._shared\n"
        "def change(named_tuple): return named_tuple._replace(field=1)\n"
    )
    found = [name for _, name in fences.private_names(source)]
    assert sorted(found) == ["_helpers", "_hidden", "_inductor", "_of_base", "_private"]


def test_private_names_of_aiohttp() -> None:
    async def use() -> None:
        connectors = aiohttp.TCPConnector(ssl=False), aiohttp.TCPConnector()
        check("aiohttp", connectors[0], "_ssl")
        assert [of_clients.connector_verifies_tls(each) for each in connectors] == [False, True]
        for each in connectors:
            await each.close()

    asyncio.run(use())


def test_private_names_of_botocore() -> None:
    async def use() -> None:
        session = AioSession()
        session.set_credentials("AKID", "secret")
        provider = session.get_component("credential_provider").get_provider("iam-role")
        check("botocore", provider, "_role_fetcher")
        check("aiobotocore", provider._role_fetcher, "_session", "_timeout")
        before = provider._role_fetcher._session
        of_clients.use_no_proxy(provider)
        assert provider._role_fetcher._session is not before
        check("botocore", session, "_components", "_create_credential_resolver")
        other = AioSession()
        of_clients.change_credential_provider(other, lambda chain: [chain])
        (chain,) = other.get_component("credential_provider")
        of_clients.give_environment(chain, {"AWS_ACCESS_KEY_ID": "of-mapping", "AWS_SECRET_ACCESS_KEY": "s"})
        check("botocore", chain.get_provider("env"), "environ")
        check("botocore", chain.get_provider("container-role"), "_environ")
        check("botocore", chain.get_provider("assume-role-with-web-identity"), "_get_env_config")
        assert (await chain.get_provider("env").load()).access_key == "of-mapping"
        process = Session().get_component("credential_provider").get_provider("custom-process")
        check("botocore", process, "_popen", "_profile_name")
        of_clients.give_process_starter(SimpleNamespace(providers=[process]), lambda profile: profile)
        assert process._popen == "default"

    asyncio.run(use())


def test_the_private_names_of_s3fs() -> None:
    fs = S3FileSystem(key="AKID", secret="secret", skip_instance_cache=True)
    session = AioSession()
    of_clients.give_session(fs, session)
    fs.connect()
    check("s3fs", fs, "_session_is_owned")
    fs.connect(refresh=True)
    assert fs.session is session
    check("s3fs", fs, "_s3")
    check("aiobotocore", fs._s3, "_endpoint")
    check("aiobotocore", fs._s3._endpoint.http_session, "_verify")
    assert of_clients.is_connected(fs)
    assert of_clients.client_verifies_tls(fs)
    unverified = S3FileSystem(client_kwargs={"verify": False}, skip_instance_cache=True)
    assert not of_clients.is_connected(unverified)
    unverified.connect()
    assert not of_clients.client_verifies_tls(unverified)


def test_private_names_of_gcsfs() -> None:
    fs = GCSFileSystem(token="anon", skip_instance_cache=True)
    check("gcsfs", fs, "_set_session")
    if tuple(map(int, version("gcsfs").split(".")[:2])) >= (2026, 10):  # the first that shows certificates
        check("gcsfs", fs, "_use_client_cert")
    assert isinstance(fsspec.asyn.sync(fs.loop, of_clients.open_session, fs), aiohttp.ClientSession)
    assert of_clients.shows_certificate(fs) is False


def test_private_names_of_azure() -> None:
    async def use() -> None:
        credential = ManagedIdentityCredential()
        check("azure-identity", credential, "_credential")
        identity = of_clients.identity_of(credential)
        check("azure-identity", identity, "_client")
        check("azure-identity", identity._client, "_pipeline")
        check("azure-core", identity._client._pipeline, "_transport")
        transport = of_clients.transport_of_identity(identity)
        check("azure-core", transport, "_use_env_settings")
        of_clients.ignore_environment(transport)
        await transport.open()
        assert transport.session.trust_env is False
        await credential.close()

    asyncio.run(use())


def test_private_names_of_fsspec() -> None:
    fs = MemoryFileSystem()
    check("fsspec", fs, "_strip_protocol", "_parent", "_cache", "_fs_token_")
    assert of_fsspec.path_of(fs, "memory://folder/file") == "/folder/file"
    assert of_fsspec.parent_of(fs, "/folder/file") == "/folder"
    assert any(each is fs for each in of_fsspec.kept_instances())
    of_fsspec.forget_instance(fs)
    assert not any(each is fs for each in of_fsspec.kept_instances())


def test_private_names_of_the_caches_of_fsspec(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"weights")
    path = str(tmp_path / "file")
    for protocol in ("simplecache", "filecache"):
        folder = str(tmp_path / protocol)
        fs = fsspec.filesystem(protocol, fs=LocalFileSystem(), cache_storage=folder, skip_instance_cache=True)
        check("fsspec", fs, "_check_file", "_mkcache", "_mapper", "_metadata", "_cache_size")
        assert of_fsspec.vars_of(fs)["fs"] is fs.fs
        of_fsspec.make_cache_folder(fs)
        assert of_fsspec.cached_copy(fs, path) is None
        fs.cat(path)
        name = of_fsspec.cached_file_name(fs, path)
        assert of_fsspec.cached_copy(fs, path) == name
        assert Path(name).read_bytes() == b"weights"
        of_fsspec.note_new_file(fs)
        assert fs.cache_size() >= len(b"weights")
        Path(name).unlink()
        assert of_fsspec.cached_copy(fs, path) is None


def test_private_names_of_the_record_of_whole_files_of_fsspec(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"weights")
    path, folder = str(tmp_path / "file"), str(tmp_path / "cache")
    named = {"fs": LocalFileSystem(), "cache_storage": folder, "skip_instance_cache": True}
    fs = fsspec.filesystem("filecache", **named)
    Path(of_fsspec.cached_file_name(fs, path)).write_bytes(b"weights")
    assert of_fsspec.cached_copy(fs, path) is None
    other = fsspec.filesystem("filecache", **named)
    of_fsspec.record_whole_file(fs, path, Path(of_fsspec.cached_file_name(fs, path)).name)
    of_fsspec.reload_record(other)
    assert of_fsspec.cached_copy(other, path) == of_fsspec.cached_file_name(fs, path)
    assert of_fsspec.cached_copy(fsspec.filesystem("filecache", **named), path) == of_fsspec.cached_file_name(fs, path)
    assert not of_fsspec.remove_malformed_record(folder)
    for cut in (b"", b"{", b"[]", b'{"a": {}}', b'{"a": 1}'):
        Path(folder, "cache").write_bytes(cut)
        assert of_fsspec.remove_malformed_record(folder)
        assert not Path(folder, "cache").exists()
    assert not of_fsspec.remove_malformed_record(folder)
    blocks = fsspec.filesystem("blockcache", **named)
    assert of_fsspec.whole_file_name(blocks, path) == f"{of_fsspec.cached_file_name(fs, path)}.whole"
    checked = fsspec.filesystem("blockcache", **named, check_files=True)
    assert of_fsspec.whole_file_name(checked, path) != of_fsspec.whole_file_name(blocks, path)


def test_private_names_of_python() -> None:
    assert hasattr(weakref.finalize, "_registry"), "tried with Python 3.10 to 3.13"
    assert hasattr(pickle, "_Unpickler"), "tried with Python 3.10 to 3.13"
    assert of_python.PythonUnpickler(io.BytesIO(b"I1\np4000000000\n.")).load() == 1  # takes no memory for the index

    class Object:
        pass

    owner = Object()
    finalizer, other = weakref.finalize(owner, print, "gone"), weakref.finalize(Object, print)
    of_python.detach_finalizers(owner)
    assert not finalizer.alive
    assert other.detach() is not None


def test_private_names_of_the_modules_of_torch() -> None:
    import torch

    from streamer.core.tensors import torch_private_names as of_torch

    module = torch.nn.BatchNorm1d(1)
    check("torch", module, "_load_state_dict_pre_hooks", "_load_state_dict_post_hooks", "_load_from_state_dict")
    before, after = (lambda *_: None), (lambda *_: None)
    module.register_load_state_dict_pre_hook(before)
    module.register_load_state_dict_post_hook(after)
    assert of_torch.load_pre_hooks(module) == [before]
    assert of_torch.load_post_hooks(module) == [after]
    assert of_torch.own_loader(module) is not None
    assert of_torch.own_loader(torch.nn.Linear(1, 1)) is None


def test_private_names_of_the_operations_of_torch() -> None:
    import torch

    from streamer.core.tensors import torch_private_names as of_torch

    aten = torch.ops.aten
    check("torch", torch.utils, "_python_dispatch")
    check("torch", torch.utils._python_dispatch, "_disable_current_modes")
    check("torch", torch._C, "_disabled_torch_function_impl", "_dispatch_has_kernel_for_dispatch_key")
    check("torch", torch._C, "_is_torch_function_all_disabled")
    check("torch", torch.Tensor, "_make_wrapper_subclass")
    check("torch", aten, "_to_copy", "_unsafe_view", "_reshape_alias")
    check("torch", aten.copy_.default, "_schema")
    seen: list[object] = []

    class Mode(of_torch.dispatch_mode(torch)):  # type: ignore[misc]
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            seen.append(func)
            return func(*args, **kwargs or {})

    with Mode():
        torch.zeros(2).to(torch.float16)
        with of_torch.without_dispatch_modes(torch):
            torch.ones(2)
    assert seen == [aten.zeros.default, aten._to_copy.default]
    assert aten._to_copy.default in of_torch.copies(torch)
    assert aten._unsafe_view.default in of_torch.views_without_alias(torch)
    assert aten.as_strided.default in of_torch.views_by_address(torch)
    assert of_torch.is_composite(torch, aten.reshape.default)
    assert not of_torch.is_composite(torch, aten.slice.Tensor)
    assert of_torch.written_arguments(aten.copy_.default) == [(0, "self")]
    assert of_torch.written_arguments(aten.add.Tensor) == []
    assert of_torch.written_arguments(aten.add.out) == [(3, "out")]
    parameter = torch.nn.Parameter(torch.zeros(2))
    assert type(of_torch.alias(torch, parameter)) is torch.Tensor
    assert of_torch.alias(torch, parameter).data_ptr() == parameter.data_ptr()


def test_private_names_of_the_functions_of_torch() -> None:
    import torch

    from streamer.core.tensors import torch_private_names as of_torch

    parameter = torch.nn.Parameter(torch.zeros(2))
    calls: list[object] = []

    class Calls(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            calls.append(func)
            return func(*args, **kwargs or {})

    with Calls():
        parameter.numel()
        with of_torch.outside_torch_functions(torch):
            parameter.data_ptr()
    assert calls == [torch.Tensor.numel]

    class Wrapper(torch.Tensor):
        __torch_function__ = of_torch.without_torch_function(torch)
        __torch_dispatch__ = None  # type: ignore[assignment]

    made = of_torch.tensor_without_bytes(torch, Wrapper, torch.empty(3, 2).t())(device="cpu")
    assert (made.shape, made.stride()) == ((2, 3), (1, 2))


def test_private_names_of_torch() -> None:
    import torch

    from streamer.core.tensors import torch_private_names as of_torch

    check("torch", torch, "_C", "_is_zerotensor")
    check("torch", torch._C, "_functorch")
    plain = torch.zeros(2)
    check("torch", plain.untyped_storage(), "_cdata")
    same = [of_torch.address_of_storage(each.untyped_storage()) for each in (plain, plain[1:])]
    assert same[0] == same[1] > 0
    found: list[bool] = []
    torch.func.vmap(lambda inside: found.append(of_torch.is_wrapped(torch)(inside)) or inside)(plain)
    assert found == [True]
    assert not of_torch.is_wrapped(torch)(plain)
    assert of_torch.is_without_memory(torch)(torch._efficientzerotensor(2))
    assert not of_torch.is_without_memory(torch)(plain)
    check("torch", plain, "_version")
    before = of_torch.changes_in_place(plain)
    plain[1:].add_(1)
    assert of_torch.changes_in_place(plain) != before
    with torch.inference_mode():
        assert of_torch.changes_in_place(torch.zeros(2)) is None


def test_private_names_of_diffusers() -> None:
    lora_base = pytest.importorskip("diffusers.loaders.lora_base")  # needs Python 3.11
    check("diffusers", lora_base, "_fetch_state_dict")
    loaded = of_diffusers.with_metadata({}, {"lora_adapter_metadata": '{"lora_alpha": 1}'})
    first, *others = inspect.signature(lora_base._fetch_state_dict.theirs).parameters
    assert lora_base._fetch_state_dict(**{first: loaded}, **dict.fromkeys(others))[:2] == ({}, {"lora_alpha": 1})
